"""``specforge-dstill evaluate``: how many drafted tokens the target accepts, and how fast."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from specforge_dstill.arguments import add_placement, add_run_file, json_object, positive
from specforge_dstill.console import say
from specforge_dstill.data.benchmarks import BENCHMARKS
from specforge_dstill.data.targets import DTYPES
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.plots import plot_acceptance
from specforge_dstill.evaluation.report import Report
from specforge_dstill.files import make_folder, write_atomically, writing
from specforge_dstill.reporting.facts import template_warnings
from specforge_dstill.verbs.decode import REJECT, DecodeRoute
from specforge_dstill.verbs.evaluation_plan import DataSet, DrafterChoice, EvaluationPlan
from specforge_dstill.verbs.replay import ReplayRoute

EXAMPLE = """example:
  specforge-dstill evaluate --replay --config dstill.yaml --steps 1,8 \\
      --prompts gsm8k=gsm8k.jsonl --prompts mt-bench=mt-bench.jsonl \\
      --drafter dflash=output/dflash-latest \\
      --drafter teacher=output/dstill_teacher-latest \\
      --drafter student=output/dstill_student-latest:1 --output results
Recovery (Eq. 13) needs a drafter named teacher, at one pass and at more, and one named student
(or student-…) at one pass. Prompts of several turns give an answer a turn.
The target's answers are kept and used again. Other prompts are answered in addition; another
target, template, precision, or --max-new-tokens is refused and needs another --answers folder.

  specforge-dstill evaluate --decode --temperature 0.6 --top-p 0.95 --dtype bfloat16 \\
      --prompts gsm8k=gsm8k.jsonl --drafter student=output/dstill_student-latest:1
decodes for real, one prompt at a time: the target alone and with each drafter in turn, after four
runs of warm-up. S is the time per output token without a drafter over that with it, the reading
of the prompt included. "Same" counts greedy answers that are the target's own, token for token.
A run that was stopped goes on; other settings need another --output.
Both rules keep the target's distribution: compare samples from the target and accepts what was
drafted alike; reject draws the draft, too, at the same temperature, top-k and top-p.
"""
#: Report, table and picture of each route; they may share a folder.
REPLAYED = ("results.json", "table.txt", "acceptance.png")
DECODED = ("decoding.json", "decoding.txt", "decoding.png")
_NAME = re.compile(r"[\w.-]+")
_STEPS = re.compile(r"\d+(?:,\d+)*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    add_run_file(parser)
    add = parser.add_argument
    add(
        "--replay",
        action="store_true",
        help="walk the target's greedy answers: exact for greedy decoding, without decoding",
    )
    add(
        "--decode",
        action="store_true",
        help="decode with each drafter and without: acceptance, speed-up, memory",
    )
    add(
        "--prompts",
        required=True,
        action="append",
        type=data_set,
        metavar="NAME[=SOURCE]",
        help="""one of gsm8k, math500, humaneval, mbpp, mt-bench, swe-bench from the Hub, as many
        prompts as the paper has; or NAME= a JSONL of {"turns": […]}, or NAME=hub:DATASET[:split];
        repeat it for more data sets""",
    )
    add("--limit", type=positive, metavar="N", help="the first N prompts of each data set")
    add(
        "--drafter",
        required=True,
        action="append",
        type=drafter_choice,
        metavar="NAME=CHECKPOINT[:STEPS]",
        help="a run folder, a checkpoint or a Hugging Face folder; repeat it for more drafters",
    )
    add(
        "--steps",
        type=steps_list,
        metavar="1,K",
        help="numbers of passes, for drafters without their own (default: 1 and dstill.steps)",
    )
    add("--max-new-tokens", type=positive, default=2048, help="an answer's (default: 2048)")
    add("--output", type=Path, default=Path("results"), metavar="FOLDER", help="default: results")
    add(
        "--answers",
        type=Path,
        metavar="FOLDER",
        help="where --replay keeps the target's answers and features (default: OUTPUT/answers)",
    )
    add(
        "--template-kwargs",
        type=json_object,
        metavar="JSON",
        help="for the chat template (default: those of the feature cache, if there is one)",
    )
    add(
        "--batch-size",
        type=positive,
        default=16,
        help="answers at a time, of --replay (default: 16)",
    )
    add(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="of target, features and drafters (default: float32, which makes replay exact)",
    )
    add("--temperature", type=float, help="with --decode; 0 is greedy (default: 0)")
    add("--top-p", type=float, metavar="P", help="with --decode, as generate's (default: 1)")
    add("--top-k", type=int, metavar="K", help="with --decode, as generate's (default: 0, all)")
    add(
        "--rule",
        choices=("compare", REJECT),
        help="with --decode; how drafts are verified (default: compare)",
    )
    add("--seed", type=int, help="with --decode, of sampled answers (default: 0)")
    add_placement(parser, default="cuda when there is a GPU")


def data_set(text: str) -> DataSet:
    """An option's NAME=SOURCE, or a benchmark's name."""
    if text in BENCHMARKS:
        return DataSet(text, None)
    known = ", ".join(BENCHMARKS)
    return DataSet(*_named(text, f"a data set is NAME=FILE, NAME=hub:DATASET or one of {known}"))


def drafter_choice(text: str) -> DrafterChoice:
    """An option's NAME=CHECKPOINT[:STEPS]."""
    name, source = _named(text, "a drafter is NAME=CHECKPOINT or NAME=CHECKPOINT:STEPS")
    checkpoint, _, steps = source.rpartition(":")
    if checkpoint and _STEPS.fullmatch(steps):
        return DrafterChoice(name, checkpoint, steps_list(steps))
    return DrafterChoice(name, source, None)


def steps_list(text: str) -> tuple[int, ...]:
    """An option's numbers of passes, such as 1,8."""
    if not _STEPS.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of passes such as 1,8")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def _named(text: str, shape: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value or not _NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{text!r}: {shape}")
    return name, value


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, write the report, the tables and a picture."""
    if args.replay == args.decode:
        raise UserError(
            "say how to measure: --replay walks the target's greedy answers, --decode decodes "
            "with each drafter"
        )
    _fill_in(args)
    plan = EvaluationPlan.of(args)
    route = DecodeRoute.of(plan) if args.decode else ReplayRoute(plan)
    report, left_out = route.measure()
    for warning in template_warnings(report.details):
        say(warning)
    for name, missing in left_out.items():
        if missing:
            reason = f"they fill the target's window (first: {missing[0]})"
            say(f"{name}: {len(missing)} turns left out, {reason}")
    names = DECODED if args.decode else REPLAYED
    results, table, picture = (args.output / name for name in names)
    _write(report, results, table, picture)
    _print_table(report)
    if speeds := report.speed_text():
        print(f"\n{speeds}")
    print(f"\n{results}, {picture}")
    return 0


def _fill_in(args: argparse.Namespace) -> None:
    """Defaults of the options that one route has; the other refuses them."""
    defaults = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "rule": "compare", "seed": 0}
    others = ("answers",) if args.decode else tuple(defaults)
    for name in others:
        if getattr(args, name) is not None:
            route = "--replay" if args.decode else "--decode"
            raise UserError(f"--{name.replace('_', '-')} belongs to {route}")
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def _write(report: Report, results: Path, table: Path, picture: Path) -> None:
    make_folder(results.parent)
    write_atomically(results, report.to_json().encode())
    tables = "\n\n".join(filter(None, (report.text(), report.speed_text())))
    write_atomically(table, f"{tables}\n".encode())
    with writing(picture):
        plot_acceptance(report, picture)


def _print_table(report: Report) -> None:
    """Ruled on a terminal, plain in a pipe or file."""
    if not sys.stdout.isatty():
        print(report.text())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for index, name in enumerate(report.header()):
        table.add_column(name, justify="left" if index == 0 else "right")
    for row in report.rows():
        table.add_row(*row)
    Console().print(table)
