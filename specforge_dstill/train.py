"""The training command: `torchrun -m specforge.train --mode MODE` and `python -m specforge.train`.

Under torchrun each process is one rank. Under plain Python it launches the ranks that
`deployment.trainer` names, which come back here with the same words.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from specforge_dstill.after_training import (
    check_collection,
    collection_of,
    latest_checkpoint,
    release_memory,
)
from specforge_dstill.console import DONE, Parser, exit_status, say
from specforge_dstill.inputs import check_inputs
from specforge_dstill.launch import (
    follow_torchrun,
    for_role,
    refusals,
    run_worker,
    specforge_run,
)
from specforge_dstill.machine import check_attention
from specforge_dstill.mode_names import ALL_MODES, DSTILL_MODES
from specforge_dstill.runfile import DEFAULT_PATH, RunFile, load_run
from specforge_dstill.store_place import check_place

if TYPE_CHECKING:
    from specforge.application import ResolvedRun
    from specforge.launch_plan import LaunchPlan

    from specforge_dstill.options import DstillOptions

_EXAMPLES = """\
examples:
  torchrun --nproc_per_node 8 -m specforge.train --mode dstill_teacher --config dstill.yaml
  torchrun --nproc_per_node 8 -m specforge.train --mode dstill_student training.num_epochs=3
  python -m specforge.train --mode dstill_collect dstill.collect.top_k=32
"""


def build_parser() -> argparse.ArgumentParser:
    """The command's words; SpecForge's launcher uses the same ones when it starts ranks."""
    parser = Parser(
        prog="specforge.train",
        description="Train a drafter with SpecForge's trainer.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--mode",
        help=f"one of {', '.join(ALL_MODES)}; by default the file's training.strategy",
    )
    parser.add_argument(
        "-c", "--config", default=DEFAULT_PATH, help=f"the run file (default: {DEFAULT_PATH})"
    )
    parser.add_argument(
        "--role",
        choices=("auto", "all", "producer", "consumer", "both"),
        default="auto",
        help="the part of a disaggregated run to start (default: auto)",
    )
    parser.add_argument("--node-rank", type=int, help="this node's rank in a multi-node launch")
    parser.add_argument(
        "--plan", action="store_true", help="print what would be started, and start nothing"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="section.field=value",
        help="set an option of the run file, dstill.* included",
    )
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line. A first word `train`, which the launcher inserts, is dropped."""
    args = build_parser().parse_intermixed_args(list(argv))
    if args.overrides[:1] == ["train"]:
        del args.overrides[0]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0 done, 2 the user's mistake (one line on stderr), 128 + signal when stopped.
    """
    words = sys.argv[1:] if argv is None else argv
    return exit_status(lambda: _train(parse(words)))


def _train(args: argparse.Namespace) -> int:
    run = load_run(args.config, args.overrides, args.mode)
    check_attention(run)
    if run.mode in DSTILL_MODES or run.config.training.attention_backend != "fa":
        # SpecForge says so on import, on every rank, whether the run uses it or not.
        warnings.filterwarnings("ignore", message="flash_attn is not found")
    run, algorithm = _followed(run)
    with refusals(every_value_error=True):
        plan = _plan(run, algorithm, args)
    if args.plan:
        print(plan.render())
        return DONE
    check_inputs(run.config, teacher=run.teacher)
    if plan.kind != "worker":
        from specforge.launch_plan import run_commands

        return run_commands(plan)
    return _work(run, args.overrides, algorithm, plan)


def _followed(run: RunFile) -> tuple[RunFile, Any]:
    """The run on the ranks that torchrun started, and its mode as SpecForge's algorithm."""
    from specforge.application import resolve_run

    with refusals(every_value_error=True):
        config = follow_torchrun(run.config, os.environ, explicit=run.explicit)
        run = replace(run, config=config)
        return run, resolve_run(config, _registry(run)).algorithm


def _registry(run: RunFile) -> Any:
    """SpecForge's registry, with our modes in it when one of them is asked for.

    UserError for one that needs a cache, in a run that streams its features.
    """
    if run.mode in DSTILL_MODES:
        from specforge_dstill.data.draft_config import backbone_of_run
        from specforge_dstill.modes import check_streaming, registry

        if run.config.mode == "online":
            check_streaming(run.mode, run.options)
        return registry(run.options, backbone=backbone_of_run(run.config))
    from specforge.algorithms.builtin import builtin_algorithm_registry

    return builtin_algorithm_registry()


def _plan(run: RunFile, algorithm: Any, args: argparse.Namespace) -> LaunchPlan:
    from specforge.launch_plan import build_launch_plan

    return build_launch_plan(
        run.config,
        algorithm=algorithm,
        config_path=run.path,
        overrides=args.overrides,
        requested_role=args.role,
        node_rank=args.node_rank,
        worker_prefix=(sys.executable, "-m", "specforge_dstill.train", "--mode", run.mode),
        # The planner puts the worker's own words, interpreter first, after this.
        torchrun_prefix=(sys.executable, "-m", "torch.distributed.run", "--no-python"),
    )


def _work(run: RunFile, overrides: Sequence[str], algorithm: Any, plan: LaunchPlan) -> int:
    resolved, note = _bound(run, algorithm, plan.role)
    for line in filter(None, (note, run.note)):
        say(line)
    run_worker(resolved, plan.worker_env, _job(run, overrides, plan.role))
    return DONE


def _bound(run: RunFile, algorithm: Any, role: str) -> tuple[ResolvedRun, str | None]:
    """The run as one process of that role runs it here, and a line that says what was chosen."""
    from specforge.application import bind_run
    from specforge.utils import get_device_type

    from specforge_dstill.machine import fit_to_machine

    config, note = fit_to_machine(
        run,
        device_type=get_device_type(),
        attention_backends=algorithm.spec.capabilities.attention_backends,
    )
    with refusals(every_value_error=True):
        return bind_run(for_role(config, role), algorithm), note


def _job(run: RunFile, overrides: Sequence[str], role: str) -> Callable[[ResolvedRun], None]:
    """What one process does once the ranks are joined."""
    if run.mode == "dstill_collect":
        if not run.options.online:
            check_place(run)
        return partial(_collect, options=run.options)
    training = partial(specforge_run, options=run.options)
    if run.mode != "dstill_teacher" or not run.options.collect.after_training:
        return training
    ahead = collection_of(run, overrides)
    check_collection(ahead, resumed=run.config.training.resume_from is not None)
    _bound(*_followed(ahead), role)

    def train_and_collect(resolved: ResolvedRun) -> None:
        training(resolved)
        release_memory()
        teacher = latest_checkpoint(resolved.config.output_dir, resolved.config.run_id)
        collection, algorithm = _followed(collection_of(run, overrides, teacher=teacher))
        bound, _ = _bound(collection, algorithm, role)
        _collect(bound, options=collection.options)

    return train_and_collect


def _collect(resolved: ResolvedRun, *, options: DstillOptions) -> None:
    from specforge_dstill.modes import run_collect

    run_collect(resolved, options)


if __name__ == "__main__":
    raise SystemExit(main())
