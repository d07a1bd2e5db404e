"""The best checkpoint of a run, by block acceptance, in SpecForge's own keeping.

``{run_id}-best`` points at it, ``{run_id}.best_meta.json`` tells its step and its numbers; the
rotation spares it, and a run that goes on remembers it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specforge.training.checkpoint import CheckpointManager


def metric(passes: int) -> str:
    """The name under which the acceptance of so many passes is logged."""
    return f"eval/tau_{passes}"


def best_keeper(config: Any, *, passes: int) -> CheckpointManager:
    """The manager of a run's checkpoints whose best is that of :func:`metric` of ``passes``.

    With it, too, goes a run without evaluations: it must not rotate away what an earlier part of
    it found best.
    """
    manager = CheckpointManager(
        config.output_dir,
        config.run_id,
        max_checkpoints=config.training.max_checkpoints,
        best_metric=metric(passes),
    )
    point_at_best(manager)
    return manager


def point_at_best(manager: CheckpointManager) -> None:
    """Make ``{run_id}-best`` point at the recorded best, where a killed run left them apart.

    Where there are no links there is none: the record stays.
    """
    if manager.best_step is None or not manager.is_rank0():
        return
    link = Path(manager.output_dir, f"{manager.run_id}-best")
    beside = link.with_name(f"{link.name}.tmp")
    with contextlib.suppress(OSError):
        beside.unlink(missing_ok=True)
        beside.symlink_to(Path(manager.checkpoint_dir(manager.best_step)).name)
        beside.replace(link)


@contextlib.contextmanager
def best_read_later() -> Iterator[None]:
    """While SpecForge assembles a run: keep it quiet on a best that another metric picked.

    Its own manager looks for ``eval/simulated_acc_len``; ours takes its place and reads again.
    """
    logger = logging.getLogger(CheckpointManager.__module__)

    def other_metric(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("ignoring best meta %s: run_id/metric mismatch")

    logger.addFilter(other_metric)
    try:
        yield
    finally:
        logger.removeFilter(other_metric)
