"""``specforge-dstill estimate``: what features and trajectories will take, told beforehand."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from specforge_dstill.arguments import add_run_file, natural, positive, positive_number
from specforge_dstill.console import say
from specforge_dstill.data.estimate import DTYPE_BYTES, SHORT_NAMES, Counts
from specforge_dstill.data.estimate_time import Hours, Room, Training
from specforge_dstill.errors import UserError
from specforge_dstill.files import nearest_folder
from specforge_dstill.table import byte_text
from specforge_dstill.verbs.estimate_counts import count
from specforge_dstill.verbs.estimate_report import CostEstimate
from specforge_dstill.verbs.estimate_settings import Settings, run_file

EXAMPLE = """example:
  specforge-dstill estimate --config dstill.yaml --conversations answers.jsonl --measure
  specforge-dstill estimate --config dstill.yaml --prompts prompts.jsonl --answer-tokens 1000
The paper's GPT-OSS-120B, without a run file or a target at hand; the paper names neither the
number of its samples nor their length, so these are round:
  specforge-dstill estimate --samples 1000000 --tokens-per-sample 4096 --layers 5 --hidden 2880 \\
      --dtype bf16 --block-size 16 --top-k 16 --anchors 512
    feature cache: 118 TB
      a token         28,816 B = 5 layers x 2,880 x 2 B + 16 B (id and mask)
      in all          118 TB in 1,000,000 files, as bfloat16
      --dtype fp8     59.1 TB
    trajectories: 780 GB
      a block         1,524 B = 1 x 4 (anchors) + 16 x 4 (endpoint) + 16 x 1 (commit_pass) \
+ 240 x 4 (top_ids) + 240 x 2 (top_logp)
      in all          780 GB in 15,625 shards of 64 samples
      record: full    5.94 TB
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    add_run_file(parser)
    counts = parser.add_argument_group("what there is").add_argument
    counts("--conversations", metavar="FILE", help="what capture takes, tokenized alike")
    counts("--prompts", metavar="FILE", help="prompts that are not answered yet")
    counts("--answer-tokens", type=positive, metavar="N", help="an answer's, with --prompts")
    counts("--limit", type=positive, metavar="N", help="the first N conversations or prompts only")
    counts(
        "--tokenize",
        type=positive,
        metavar="N",
        help="tokenize N of them, evenly spread, and scale up (default: all)",
    )
    counts("--samples", type=positive, metavar="N", help="counts by hand: so many samples …")
    counts("--tokens-per-sample", type=positive, metavar="S", help="… of so many tokens")
    sizes = parser.add_argument_group("in place of the run file").add_argument
    sizes("--layers", type=positive, metavar="L", help="target layers that are captured")
    sizes("--hidden", type=positive, metavar="H", help="the target's hidden size")
    sizes(
        "--dtype",
        choices=(*DTYPE_BYTES, *SHORT_NAMES),
        help="of the stored states (default: model.torch_dtype, else bfloat16 with a GPU here and "
        "float32 without)",
    )
    sizes("--block-size", type=positive, metavar="B")
    sizes("--steps", type=positive, metavar="K", help="passes (default: dstill.steps, 8)")
    sizes("--top-k", type=natural, metavar="k", help="ids kept a position")
    sizes("--anchors", type=positive, metavar="N", help="blocks a sample, at most")
    sizes("--record", choices=("commit", "full"))
    time = parser.add_argument_group("time").add_argument
    time("--ranks", type=positive, default=1, metavar="N", help="that work at once (default: 1)")
    time(
        "--measure",
        action="store_true",
        help="run a short capture and rollout here for the throughput",
    )
    time("--device", help="of --measure; default: cuda when there is a GPU, else cpu")
    time("--capture-tokens-per-second", type=positive_number, metavar="X", help="of one rank")
    time("--collect-blocks-per-second", type=positive_number, metavar="X", help="of one rank")
    time("--teacher-seconds-per-step", type=positive_number, metavar="X")
    time("--student-seconds-per-step", type=positive_number, metavar="X")
    parser.add_argument("--json", action="store_true", help="numbers for machines")


def run(args: argparse.Namespace) -> int:
    """Print the estimate; a warning on stderr when something does not fit."""
    settings = Settings.of(args)
    counts = count(args, settings)
    cache, store = settings.cache(counts), settings.store(counts)
    estimate = CostEstimate(
        settings=settings,
        counts=counts,
        cache=cache,
        store=store,
        times=(*_times(args, settings, counts), *_training(args, counts)),
        rooms=_rooms(settings, cache.total, 0 if store is None else store.total),
    )
    if args.json:
        print(json.dumps(estimate.to_json(), ensure_ascii=False, indent=1))
    else:
        print(estimate.text())
    for room in estimate.rooms:
        if not room.fits:
            say(
                f"warning: {' and '.join(room.folders)} will need {byte_text(room.needed)}; "
                f"{byte_text(room.free)} are free there"
            )
    return 0


def _times(args: argparse.Namespace, settings: Settings, counts: Counts) -> list[Hours]:
    """Capture and collection, as far as their throughput is given or to be measured."""
    work = {"capture": (counts.tokens, "tokens")}
    if not settings.online:
        work["collect"] = counts.blocks, "blocks"
    given = {
        "capture": args.capture_tokens_per_second,
        "collect": args.collect_blocks_per_second,
    }
    rates = {stage: (rate, "given") for stage, rate in given.items() if rate is not None}
    if args.measure:
        from specforge_dstill.verbs.measure import measured_rates

        missing = [stage for stage in work if stage not in rates]
        rates |= measured_rates(args, settings, counts, missing)
    return [
        Hours(stage, *work[stage], rate=rates[stage][0], ranks=args.ranks, source=rates[stage][1])
        for stage in work
        if stage in rates
    ]


def _training(args: argparse.Namespace, counts: Counts) -> list[Training]:
    times = []
    for stage in ("teacher", "student"):
        seconds = getattr(args, f"{stage}_seconds_per_step")
        if seconds is None:
            continue
        run = run_file(args, f"dstill_{stage}")
        if run is None:
            raise UserError(
                f"--{stage}-seconds-per-step: batch size and epochs are in the run file; name it "
                "with --config"
            )
        training = run.config.training
        batch = training.batch_size * training.accumulation_steps * args.ranks
        times.append(Training(stage, counts.samples, batch, training.num_epochs, seconds))
    return times


def _rooms(settings: Settings, cache: int, store: int) -> tuple[Room, ...]:
    """Free space where the run file puts things; folders of one file system are put together."""
    if settings.run is None:
        return ()
    wanted = {settings.run.config.data.hidden_states_path: cache}
    if store and "://" not in settings.run.options.trajectories:
        wanted[settings.run.options.trajectories] = store
    groups: dict[int, dict[str, int]] = {}
    for name, size in wanted.items():
        if name:
            device = nearest_folder(Path(name)).stat().st_dev
            groups.setdefault(device, {})[name] = size
    return tuple(
        Room(list(group), sum(group.values()), shutil.disk_usage(nearest_folder(Path(first))).free)
        for group in groups.values()
        for first in list(group)[:1]
    )
