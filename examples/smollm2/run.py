"""DSTILL for a real model: SmolLM2-135M-Instruct, from the prompts to the paper's Table 4 in small.

    pip install gguf
    P=path/to/prompts                       JSONL, {"turns": ["…"]} a line
    python examples/smollm2/run.py --train-prompts $P/gsm8k-train.jsonl \\
        --eval-prompts gsm8k=$P/gsm8k.jsonl mt-bench=$P/mt-bench.jsonl            [--smoke | --full]

    --smoke     proves the plumbing on two CPU cores (the default size takes hours, in pieces:
                see --minutes)
    --full      for a machine with GPUs: every prompt, every anchor, the paper's epochs

The stages, each a command that you could type in runs/smollm2 (their logs are in its logs/):

    target          python examples/smollm2/prepare_target.py --output .
    regenerate      specforge-dstill regenerate --target target --prompts … --output answers.jsonl …
    capture         specforge-dstill capture --conversations answers.jsonl …
    dflash          torchrun -m specforge.train --mode dstill_teacher dstill.steps=1 run_id=dflash
    dstill_teacher  torchrun -m specforge.train --mode dstill_teacher
    dstill_collect  torchrun -m specforge.train --mode dstill_collect
    dstill_student  torchrun -m specforge.train --mode dstill_student
    dflash-more     the baseline again, for the student's epochs
    evaluate        specforge-dstill evaluate --replay --prompts … --drafter … --output results
    decode          specforge-dstill evaluate --decode …                 for S, of fewer prompts
    report          specforge-dstill report results decoded …

A teacher with one reveal level, the root, is DFlash; on a CPU it takes about half of --mode
dflash's time (see README). Without a GPU a baseline trains beside its rival, a core each; with
GPUs all stages take turns.

When its minutes are over, or at Ctrl-C, it stops; the same command goes on where it was: finished
stages are skipped, answers, features and trajectories that are there are kept, and training goes
on from its newest checkpoint. Exit status: 0 all done, 75 run it again, else an error.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from stages import DSTILL, PYTHON, Stage, run_stages, train  # noqa: E402

from specforge_dstill.runfile import merge  # noqa: E402

RUN_AGAIN = 75  # EX_TEMPFAIL
BASELINE, MORE = "dflash", "dflash-more"
ROOT_ONLY = "dstill.steps=1"  # what makes a teacher a DFlash drafter
DRAFTERS = (
    f"{BASELINE}=output/{BASELINE}-latest",
    f"{MORE}=output/{MORE}-latest:1",
    "teacher=output/dstill_teacher-latest",
    "student=output/dstill_student-latest:1",
)
#: Whose curves the page shows, and the names of their logs.
LOGS = {BASELINE: BASELINE, MORE: MORE, "teacher": "dstill_teacher", "student": "dstill_student"}
Runner = Callable[[Sequence[Stage], Path, int], None]


@dataclass(frozen=True)
class Size:
    """How much of everything.

    Attributes:
        prompts: training prompts; None for all.
        eval_prompts: of each data set; None for all.
        new_tokens, eval_tokens: the most tokens of an answer, in training and in evaluation.
        decoded_prompts, decoded_tokens: the same of real decoding, which measures S.
        batch: answers that are generated side by side.
        minutes: of one piece; None for no limit.
        document: what differs from dstill.yaml.
    """

    prompts: int | None
    eval_prompts: int | None
    new_tokens: int
    eval_tokens: int
    decoded_prompts: int | None
    decoded_tokens: int
    batch: int
    minutes: float | None = None
    document: dict[str, Any] = field(default_factory=dict)


SIZES = {
    "smoke": Size(
        prompts=64,
        eval_prompts=4,
        new_tokens=96,
        eval_tokens=64,
        decoded_prompts=1,
        decoded_tokens=24,
        batch=32,
        document={
            "data": {"max_length": 512},
            "training": {"save_interval": 10},
            "modes": {
                "dstill_teacher": {"training": {"num_epochs": 6}},
                "dstill_student": {"training": {"num_epochs": 3}},
            },
        },
    ),
    "default": Size(
        prompts=480,
        eval_prompts=8,
        new_tokens=160,
        eval_tokens=96,
        decoded_prompts=1,
        decoded_tokens=32,
        batch=32,
        minutes=110,
    ),
    "full": Size(
        prompts=None,
        eval_prompts=None,
        new_tokens=1024,
        eval_tokens=1024,
        decoded_prompts=32,
        decoded_tokens=1024,
        batch=256,
        document={
            "model": {"torch_dtype": "bfloat16"},
            "data": {"max_length": 2048},
            "training": {
                "batch_size": 8,
                "num_anchors": 512,
                "attention_backend": "flex_attention",
                "fsdp_sharding": "NO_SHARD",  # the drafter has 9 million parameters
                "save_interval": 500,
                "log_interval": 50,
            },
            "dstill": {"collect": {"anchors_per_sample": None, "shard_size": 64}},
            "modes": {
                "dstill_teacher": {"training": {"num_epochs": 10}},
                "dstill_student": {"training": {"num_epochs": 3}},
            },
        },
    ),
}


def main(argv: Sequence[str] | None = None, runner: Runner | None = None) -> int:
    args = parse(argv)
    work = args.work.resolve()
    claim(work, settings(args))
    document = run_document(SIZES[args.size], args.ranks)
    (work / "dstill.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    todo = stages(args, work)
    start = time.monotonic()
    try:
        with time_limit(args.minutes):
            (runner or _run)(todo, work, args.ranks)
    except (TimeoutError, KeyboardInterrupt) as stop:
        why = "time is up" if isinstance(stop, TimeoutError) else "stopped"
        print(f"{why} after {time.monotonic() - start:.0f} s; the same command goes on from here")
        return RUN_AGAIN
    print(f"{'all':<28} {time.monotonic() - start:.0f} s\n")
    for table in ("results/table.txt", "decoded/decoding.txt"):
        print((work / table).read_text())
    print(f"page: {args.work / 'report' / 'report.html'}")
    return 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. `size`, `ranks` and `minutes` are set in any case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--train-prompts", required=True, metavar="FILE", help="a file, or hub:NAME[:split]")
    add("--eval-prompts", required=True, nargs="+", type=_named, metavar="NAME=FILE")
    size = parser.add_mutually_exclusive_group()
    for name in ("smoke", "full"):
        size.add_argument(f"--{name}", dest="size", action="store_const", const=name)
    parser.set_defaults(size="default")
    add("--work", type=Path, default=Path("runs/smollm2"), help="the run's folder")
    add("--ranks", type=int, help="training processes (default: one a GPU; one on a CPU)")
    add("--minutes", type=float, help="stop after so many (default size: 110; else no limit)")
    args = parser.parse_args(argv)
    args.ranks = _gpus() or 1 if args.ranks is None else args.ranks
    args.minutes = SIZES[args.size].minutes if args.minutes is None else args.minutes
    samples = run_document(SIZES[args.size], 1)["training"]["batch_size"]
    if args.ranks < 1 or samples % args.ranks:
        parser.error(f"--ranks {args.ranks} does not divide the {samples} samples of a step")
    return args


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What must stay the same when a run goes on."""
    named = ("size", "ranks", "train_prompts", "eval_prompts")
    return {name: getattr(args, name) for name in named}


def claim(work: Path, wanted: dict[str, Any]) -> None:
    """Make the run's folder, or refuse one that holds a run of other settings."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / "settings.json"
    if not path.exists():
        path.write_text(json.dumps(wanted, indent=2) + "\n")
    for name, value in json.loads(path.read_text()).items():
        if wanted[name] != value:
            sys.exit(
                f"{work} holds a run with {name} {value}, not {wanted[name]}; "
                "name another folder with --work"
            )


def run_document(size: Size, ranks: int) -> dict[str, Any]:
    """The run file of a size. The samples of a step are shared among the ranks."""
    document = merge(yaml.safe_load((HERE / "dstill.yaml").read_text()), size.document)
    document["training"]["batch_size"] //= ranks
    return document


def stages(args: argparse.Namespace, work: Path) -> list[Stage]:
    """The pipeline, top to bottom. Paths are relative to the run's folder."""
    size = SIZES[args.size]
    regenerate = [*DSTILL, "regenerate", "--target", "target", "--output", "answers.jsonl"]
    regenerate += ["--prompts", _from_anywhere(args.train_prompts), *_limit(size.prompts)]
    regenerate += ["--max-new-tokens", str(size.new_tokens), "--batch-size", str(size.batch)]

    # A stop loses the answers that are being written, or at most this many conversations' features.
    capture = [*DSTILL, "capture", "--conversations", "answers.jsonl", "--shard-size", "32"]

    def training(name: str, mode: str, *own: str, start: str = "") -> dict[str, Sequence[str]]:
        words = [*own, *going_on(name, start, work=work)]
        words += [] if name == mode else [f"run_id={name}"]
        return {name: train(mode, *words, ranks=args.ranks)}

    teacher, student = (training(mode, mode) for mode in ("dstill_teacher", "dstill_student"))
    baseline = training(BASELINE, "dstill_teacher", ROOT_ONLY)
    longer = run_document(size, 1)["modes"]["dstill_student"]["training"]
    options = [ROOT_ONLY, *(f"training.{name}={value}" for name, value in longer.items())]
    more = training(MORE, "dstill_teacher", *options, start=BASELINE)
    return [
        Stage("target", {"target": [PYTHON, str(HERE / "prepare_target.py"), "--output", "."]}),
        Stage("regenerate", {"regenerate": regenerate}),
        Stage("capture", {"capture": capture}),
        *in_turn_or_beside("dflash-and-teacher", baseline | teacher),
        Stage("dstill_collect", {"dstill_collect": train("dstill_collect", ranks=args.ranks)}),
        *in_turn_or_beside("student-and-more", student | more),
        *measurements(args),
    ]


def in_turn_or_beside(name: str, commands: dict[str, Sequence[str]]) -> list[Stage]:
    """With GPUs a training has them all; the cores of a CPU are better used by several."""
    if _gpus():
        return [Stage(one, {one: command}) for one, command in commands.items()]
    return [Stage(name, commands)]


def measurements(args: argparse.Namespace) -> list[Stage]:
    """Table 4 by replay, S by real decoding, and both as a page."""
    size = SIZES[args.size]
    prompts = []
    for pair in args.eval_prompts:
        name, _, source = pair.partition("=")
        prompts += ["--prompts", f"{name}={_from_anywhere(source)}"]
    drafters = [word for drafter in DRAFTERS for word in ("--drafter", drafter)]

    replay = [*DSTILL, "evaluate", "--replay", "--output", "results", *_limit(size.eval_prompts)]
    replay += ["--max-new-tokens", str(size.eval_tokens), "--batch-size", str(size.batch)]
    decode = [*DSTILL, "evaluate", "--decode", "--output", "decoded", *_limit(size.decoded_prompts)]
    decode += ["--max-new-tokens", str(size.decoded_tokens)]
    report = [*DSTILL, "report", "results", "decoded"]
    for name, log in LOGS.items():
        report += ["--training", f"{name}=logs/{log}.log"]
    commands = {
        "evaluate": [*replay, *prompts, *drafters],
        "decode": [*decode, *prompts, *drafters],
        "report": report,
    }
    return [Stage(name, {name: command}) for name, command in commands.items()]


def going_on(run_id: str, start: str, *, work: Path) -> list[str]:
    """Where a training starts: its newest checkpoint if there is one, else another run's last."""
    latest = Path("output") / f"{run_id}-latest"
    if (work / latest).exists():
        return [f"training.resume_from={latest}"]
    return [f"model.draft_checkpoint_path=output/{start}-latest"] if start else []


@contextmanager
def time_limit(minutes: float | None) -> Iterator[None]:
    """Raise TimeoutError in the block after so many minutes; KeyboardInterrupt at a SIGTERM."""

    def ring(_signal: int, _frame: object) -> None:
        raise TimeoutError

    handlers = {signal.SIGALRM: ring, signal.SIGTERM: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes if minutes else 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(todo: Sequence[Stage], work: Path, ranks: int) -> None:
    print("\n".join(f"$ {shlex.join(c)}" for s in todo for c in s.commands.values()), flush=True)
    # Threads that spin while they wait are many times slower on cores that other work uses, too.
    threads = max(1, (os.cpu_count() or 1) // ranks) if ranks > 1 else None
    run_stages(todo, work, threads=threads)


def _gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


def _named(text: str) -> str:
    name, equals, source = text.partition("=")
    if not (name and equals and source):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return text


def _from_anywhere(source: str) -> str:
    """A file's absolute path; a data set on the Hub stays as it is."""
    return source if source.startswith("hub:") else str(Path(source).resolve())


def _limit(count: int | None) -> list[str]:
    return [] if count is None else ["--limit", str(count)]


if __name__ == "__main__":
    sys.exit(main())
