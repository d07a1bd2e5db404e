"""A drafter in our decoder, in z-lab's dflash and in vLLM's server: the same tokens and rounds.

    make test-serving                                   sets up .venv-serving, and runs a small case
    python examples/serving/run.py --config dstill.yaml --prompts prompts.jsonl \\
        --engines .venv-serving student=EXPORTED [more=EXPORTED …]

EXPORTED is a folder of `specforge-dstill export`. Everything runs on the CPU in float32, one
request at a time, at temperature 0. Ends with status 1 when an engine gives other tokens than the
target alone, another number of rounds than ours, or an acceptance that counting does not explain.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from answers import Answers  # noqa: E402
from here import Here, Prompts, decode_here  # noqa: E402
from in_vllm import ask_vllm, vllm_server  # noqa: E402

from specforge_dstill.data import targets  # noqa: E402
from specforge_dstill.data.conversations import read_prompts  # noqa: E402
from specforge_dstill.export.check import Folder  # noqa: E402
from specforge_dstill.export.layouts import NATIVE  # noqa: E402
from specforge_dstill.export.target_facts import TargetFacts  # noqa: E402
from specforge_dstill.modes.assembly import beside_target  # noqa: E402
from specforge_dstill.runfile import load_run  # noqa: E402
from specforge_dstill.table import text_table  # noqa: E402

HEADER = ("Drafter", "Engine", "Rounds", "Accepted", "τ", "Same tokens")


@dataclass(frozen=True)
class Compared:
    """A drafter in every engine that takes it.

    Attributes:
        here: ours, which the others are held against.
    """

    drafter: str
    here: Here
    others: tuple[Answers, ...]

    def rows(self) -> list[tuple[str, ...]]:
        """A row an engine."""
        total = len(self.here.greedy)
        return [
            (
                *(self.drafter, one.engine, str(one.rounds), str(one.accepted), f"{one.tau:.3f}"),
                f"{sum(map(tuple.__eq__, one.tokens, self.here.greedy))}/{total}",
            )
            for one in (self.here.counted, *self.others)
        ]

    def faults(self) -> Iterator[str]:
        """What counting does not explain."""
        ours = self.here.counted
        explained = {
            # It counts a round's tokens: of a last one, whose end was drafted, one less.
            "dflash": ours.accepted - self.here.stopped,
            # It counts before it cuts an answer at its end.
            "vllm": self.here.uncut,
        }
        for one in (ours, *self.others):
            if one.tokens != self.here.greedy:
                yield f"{self.drafter} in {one.engine}: other tokens than the target alone"
            if one.rounds != ours.rounds:
                yield f"{self.drafter} in {one.engine}: {one.rounds} rounds, ours {ours.rounds}"
            wanted = explained.get(one.engine, ours.accepted)
            if one.accepted != wanted:
                yield f"{self.drafter} in {one.engine}: accepted {one.accepted}, not {wanted}"


def compare(
    name: str, exported: Path, *, run: Any, prompts: Prompts, engines: Path, max_new_tokens: int
) -> Compared:
    """Measure a drafter in all engines that take it, on a CPU."""
    target, python = Path(run.config.model.target_model_path), engines / "bin" / "python"
    folder = Folder.read(exported)
    with redirect_stdout(sys.stderr):
        drafter = beside_target(
            folder.as_exportable(TargetFacts.of(str(target))).model(),
            run.config.model,
            mask_token_id=folder.facts.mask_token_id,
            device=torch.device("cpu"),
        )
    model = targets.load_model(str(target), dtype="float32", device="cpu")
    here = decode_here(
        model, drafter, folder.facts.layer_ids, prompts, max_new_tokens=max_new_tokens
    )
    others = []
    if folder.layout == NATIVE and not folder.facts.markov:
        others.append(in_dflash(python, target, exported, prompts, max_new_tokens=max_new_tokens))
    if not folder.facts.needs_gpu_in_vllm:
        log = Path(f"{name}-vllm.log")
        with vllm_server(python, target, exported, drafted=folder.facts.drafted, log=log) as url:
            others.append(ask_vllm(url, prompts.messages, max_new_tokens=max_new_tokens))
    return Compared(name, here, tuple(others))


def in_dflash(
    python: Path, target: Path, drafter: Path, prompts: Prompts, *, max_new_tokens: int
) -> Answers:
    """Run in_dflash.py in the engines' environment."""
    done = subprocess.run(
        [
            *(str(python), str(HERE / "in_dflash.py"), str(target), str(drafter)),
            *(str(max_new_tokens), json.dumps(prompts.stop_ids)),
        ],
        input=json.dumps(prompts.ids),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"dflash failed:\n{done.stderr}")
    return Answers.from_json(done.stdout.splitlines()[-1])


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print the table and what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("drafters", nargs="+", metavar="NAME=EXPORTED")
    add("--config", default="dstill.yaml", help="the run file, which names the target")
    add("--prompts", required=True, help='a JSONL of {"turns": […]}')
    add("--engines", type=Path, default=Path(".venv-serving"), help="vLLM's and dflash's .venv")
    add("--limit", type=int, default=20)
    add("--max-new-tokens", type=int, default=128)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    run = load_run(args.config, (), "dflash")
    messages = [prompt.turns[0] for prompt in read_prompts(args.prompts, limit=args.limit)]
    prompts = Prompts.of(run.config.model.target_model_path, messages)
    rows, faults = [], []
    for word in args.drafters:
        name, _, folder = word.partition("=")
        found = compare(
            name,
            Path(folder),
            run=run,
            prompts=prompts,
            engines=args.engines,
            max_new_tokens=args.max_new_tokens,
        )
        rows += found.rows()
        faults += found.faults()
    print(text_table(HEADER, rows))
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
