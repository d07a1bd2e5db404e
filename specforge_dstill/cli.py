"""`specforge-dstill VERB`: the commands around training. A verb's module loads when it is named."""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from specforge_dstill import __version__
from specforge_dstill.console import DONE, Parser, exit_status
from specforge_dstill.errors import UserError
from specforge_dstill.suggest import nearest

PROGRAM = "specforge-dstill"


class Verb(NamedTuple):
    """A command: its module has `add_arguments(parser)` and `run(args) -> int`.

    `add_arguments` may replace the epilog, which is the example otherwise.
    """

    module: str
    help: str
    example: str


VERBS = {
    "init": Verb(
        "specforge_dstill.starter",
        "write a commented run file",
        "init --target Qwen/Qwen3-8B --draft-config draft.json",
    ),
    "regenerate": Verb(
        "specforge_dstill.data.regenerate",
        "let the target answer a file of prompts",
        "regenerate --target Qwen/Qwen3-8B --prompts prompts.jsonl --output answers.jsonl",
    ),
    "capture": Verb(
        "specforge_dstill.data.capture",
        "write the target's hidden states for those answers",
        "capture --conversations answers.jsonl",
    ),
    "estimate": Verb(
        "specforge_dstill.verbs.estimate",
        "tell the bytes and hours of features, trajectories and training",
        "estimate --config dstill.yaml --conversations answers.jsonl",
    ),
    "inspect": Verb(
        "specforge_dstill.verbs.inspect",
        "show what is in a feature cache or a trajectory store",
        "inspect --config dstill.yaml trajectories",
    ),
    "verify": Verb(
        "specforge_dstill.verbs.verify",
        "read a cache or a store to its end and name what is damaged",
        "verify --repair cache",
    ),
    "evaluate": Verb(
        "specforge_dstill.verbs.evaluate",
        "measure how many tokens the target accepts, and the speed-up",
        "evaluate --replay --prompts gsm8k=test.jsonl --drafter student=student-latest",
    ),
    "ablate": Verb(
        "specforge_dstill.verbs.ablate",
        "train and measure a grid of variants over several seeds",
        "ablate ablations.yaml",
    ),
    "report": Verb(
        "specforge_dstill.verbs.report",
        "make a page of tables and figures from results",
        "report --output report results",
    ),
    "export": Verb(
        "specforge_dstill.verbs.export",
        "write a trained drafter as SGLang, vLLM and dflash load it",
        "export --checkpoint output/dstill_student-latest --output-dir student",
    ),
    "check-export": Verb(
        "specforge_dstill.verbs.check_export",
        "compare an exported drafter with what engines read and with training",
        "check-export --target Qwen/Qwen3-8B student",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb. Returns 0 done, 2 the user's mistake; anything else is a bug's traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_status(lambda: _dispatch(words))


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return DONE
    if words[0] == "--version":
        print(__version__)
        return DONE
    name = words[0]
    if name not in VERBS:
        close = nearest(name, VERBS)
        hint = f"; did you mean {close}?" if close else ""
        raise UserError(f"unknown command {name!r}{hint} (commands: {', '.join(VERBS)})")
    # SpecForge says so on import; no verb uses that attention of its drafters.
    warnings.filterwarnings("ignore", message="flash_attn is not found")
    # Intermixed: overrides may stand between options.
    args = parser_of(name).parse_intermixed_args(words[1:])
    status: int = importlib.import_module(VERBS[name].module).run(args)
    return status


def parser_of(name: str) -> Parser:
    """What a verb takes; its module is loaded."""
    verb = VERBS[name]
    parser = Parser(
        prog=f"{PROGRAM} {name}",
        description=f"{verb.help[0].upper()}{verb.help[1:]}.",
        epilog=f"example:\n  {PROGRAM} {verb.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    importlib.import_module(verb.module).add_arguments(parser)
    return parser


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"usage: {PROGRAM} VERB [options]", ""]
    lines += [f"  {name:<{width}}  {verb.help}" for name, verb in VERBS.items()]
    lines += [
        "",
        f"{PROGRAM} VERB --help shows a verb's options and an example.",
        "Training itself: torchrun -m specforge.train --mode MODE (--help for the modes)",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
