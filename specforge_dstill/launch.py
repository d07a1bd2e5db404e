"""One training process: its environment, its process group, its clean end.

SpecForge's own command does the same for its built-in modes; it offers no public entry that takes
a registry, so the loop is written here against its public parts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING

from specforge_dstill.console import FAILED, ReportedError, report, say
from specforge_dstill.errors import UserError
from specforge_dstill.inputs import check_outputs, check_unused
from specforge_dstill.resume_refusal import readable
from specforge_dstill.stopping import ending_though_stuck

if TYPE_CHECKING:
    from specforge.application import ResolvedRun
    from specforge.config import Config, TrainingConfig

    from specforge_dstill.options import DstillOptions

_RENDEZVOUS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# In what gloo and NCCL say of a collective that another rank has left.
_SIGNS_OF_A_LOST_RANK = ("gloo/transport", "ncclRemoteError")
_LOST_RANK = (
    "another rank of this run has ended, so this one cannot go on; what was finished stays, run "
    "the same command again"
)


@contextmanager
def refusals(*, every_value_error: bool) -> Iterator[None]:
    """Turn SpecForge's refusal of a config or of an input into a UserError.

    Args:
        every_value_error: for code that only checks. Otherwise only what SpecForge raises itself,
            and missing files that it or transformers names, so that a bug keeps its traceback.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        origin = _raised_in(error.__traceback__)
        checked = isinstance(error, ValueError) and (every_value_error or origin == "specforge")
        missing = isinstance(error, OSError) and origin in {
            "specforge",
            "transformers",
            "huggingface_hub",
        }
        if not (checked or missing):
            raise
        raise UserError(readable(" ".join(str(error).split()))) from error


def follow_torchrun(
    config: Config, env: Mapping[str, str], *, explicit: frozenset[str] = frozenset()
) -> Config:
    """The config with the topology that torchrun started, unless the user set one himself."""
    trainer = "deployment.trainer."
    if "WORLD_SIZE" not in env or {f"{trainer}nproc_per_node", f"{trainer}nnodes"} & explicit:
        return config
    world = int(env["WORLD_SIZE"])
    local = int(env.get("LOCAL_WORLD_SIZE", world))
    raw = config.model_dump()
    raw["deployment"]["trainer"] |= {"nproc_per_node": local, "nnodes": world // local}
    if world > local and not config.deployment.trainer.master_addr:
        raw["deployment"]["trainer"]["master_addr"] = env.get("MASTER_ADDR")
    return type(config).model_validate(raw)


def for_role(config: Config, role: str) -> Config:
    """The config of one launched process.

    A child owns no services: its parent supervises them. A producer has no training to profile.
    """
    raw = config.model_dump()
    raw["training"]["role"] = role
    if raw["deployment"].get("disaggregated"):
        raw["deployment"]["disaggregated"]["managed_local"] = None
    if role == "producer":
        raw["profiling"]["enabled"] = False
    return type(config).model_validate(raw)


def run_worker(
    resolved: ResolvedRun,
    environment: Mapping[str, str | None],
    run: Callable[[ResolvedRun], object],
) -> None:
    """Train, or what else ``run`` does, in this process, as one rank.

    Args:
        resolved: the config of this process's role, bound to its mode.
        environment: what the launch plan sets, and with None unsets, for this process.
        run: what to do once the ranks are joined.
    """
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    training = resolved.config.training
    os.environ["FSDP_SHARDING"] = training.fsdp_sharding

    from accelerate.utils import set_seed

    set_seed(training.seed)
    if training.role == "producer":
        # It only publishes features: no process group, no device.
        run(resolved)
        return

    _complete_rendezvous(os.environ)
    with refusals(every_value_error=True):
        resolved.config.validate_world_size(int(os.environ["WORLD_SIZE"]))
    with ending_though_stuck(say), joined(training):
        try:
            run(resolved)
        except UserError as error:
            # While this rank is in the group: when it leaves, gloo fails the others, and torchrun
            # stops this one with them.
            report(error)
            raise ReportedError from error
        except RuntimeError as error:
            if not any(sign in str(error) for sign in _SIGNS_OF_A_LOST_RANK):
                raise
            report(UserError(_LOST_RANK), bystander=True)
            raise ReportedError(FAILED) from error


@contextmanager
def joined(training: TrainingConfig) -> Iterator[None]:
    """This process as a rank of the group, which it leaves at the end of the block.

    After an error only where leaving waits for no other rank. NCCL's waits for those that sit in
    a collective with this one, which then never comes; there the group is left as it is, so that
    the error is shown, the process ends, and torchrun stops the others.
    """
    from specforge.distributed import destroy_distributed, init_distributed
    from torch import distributed

    init_distributed(
        timeout=training.dist_timeout,
        tp_size=training.tp_size,
        sp_ulysses_size=training.sp_ulysses_size,
        sp_ring_size=training.sp_ring_size,
    )
    try:
        yield
    except BaseException:
        if distributed.is_initialized() and distributed.get_backend() == "gloo":
            destroy_distributed()
        raise
    destroy_distributed()


def specforge_run(resolved: ResolvedRun, *, options: DstillOptions) -> None:
    """SpecForge's own run of a mode, once the ranks are joined; evaluations are ours."""
    from specforge.application import build_application_run

    from specforge_dstill.data.safe_loading import only_tensors
    from specforge_dstill.modes.best_checkpoint import best_read_later
    from specforge_dstill.modes.in_training import evaluate_in_training

    _check_places(resolved.config, options)
    # A checkpoint to go on from may hold more than tensors; it is read before any feature is.
    building = nullcontext() if resolved.config.training.resume_from else only_tensors()
    with building, best_read_later(), refusals(every_value_error=False):
        training_run = build_application_run(resolved)
    note = evaluate_in_training(training_run.trainer, resolved.config, options)
    if note:
        say(note)
    if resolved.config.training.role != "producer":
        check_outputs(resolved.config)
    with only_tensors():
        training_run.run()


def _check_places(config: Config, options: DstillOptions) -> None:
    """UserError for an output folder that is taken, or a store that is not there or not finished.

    Ranks look once they are joined: none of them is then still collecting.
    """
    from specforge_dstill.modes.agreement import agreed
    from specforge_dstill.trajectory_store import check_finished

    if config.training.role != "producer":
        check_unused(config)
    if config.training.strategy == "dstill_student" and not options.online:
        agreed(lambda: check_finished(options.trajectories))


def _complete_rendezvous(env: MutableMapping[str, str]) -> None:
    """The `env://` variables of a group of one, where no launcher set any."""
    if all(name in env for name in _RENDEZVOUS):
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env.update(zip(_RENDEZVOUS, ("0", "1", "0", "127.0.0.1", str(port)), strict=True))


def _raised_in(traceback: TracebackType | None) -> str:
    """The top-level package whose code raised."""
    name = ""
    while traceback is not None:
        name = traceback.tb_frame.f_globals.get("__name__", "")
        traceback = traceback.tb_next
    return name.partition(".")[0]
