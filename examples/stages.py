"""Running a pipeline of commands that can be stopped and started again.

A stage is a named group of commands that run side by side. A finished stage leaves a marker and
is skipped by the next run; a stage that was cut short is run again, and its commands go on where
they stopped (regenerate by prompt, capture and collection by shard, training by checkpoint).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON = sys.executable
DSTILL = (PYTHON, "-m", "specforge_dstill")


@dataclass(frozen=True)
class Stage:
    """Commands that run side by side, each under its own name (the log's, too)."""

    name: str
    commands: dict[str, Sequence[str]]


class StageFailed(SystemExit):
    """A command ended with an error; its log's last lines were printed."""


def train(mode: str, *overrides: str, ranks: int = 1) -> list[str]:
    """The training command, as a user types it: ``torchrun -m specforge.train --mode MODE``."""
    launcher = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
    return [*launcher, str(ranks), "-m", "specforge.train", "--mode", mode, *overrides]


def run_stages(stages: Sequence[Stage], work: Path, *, threads: int | None = None) -> None:
    """Run the stages in ``work``, in order; print the wall time of each.

    Args:
        work: the folder in which the commands run; logs and markers go to ``work/logs``.
        threads: of each process. By default a stage's commands share the machine's cores. Small
            models want 1: their matrices are too small for more, and two threads that wait for
            a core that others use are several times slower than one.
    """
    logs = work / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count() or 1
    for stage in stages:
        marker = logs / f"{stage.name}.done"
        if marker.exists():
            print(f"{stage.name:<28} done before, {marker.read_text()}", flush=True)
            continue
        start = time.monotonic()
        print(f"{stage.name:<28} …", flush=True)
        shared = max(1, cores // len(stage.commands))
        _run_side_by_side(stage, work, logs, threads=threads or shared)
        took = f"{time.monotonic() - start:.0f} s"
        marker.write_text(took)
        print(f"{stage.name:<28} {took}", flush=True)


def _run_side_by_side(stage: Stage, work: Path, logs: Path, *, threads: int) -> None:
    environment = {
        # Threads that spin while they wait starve those that work, where cores are shared.
        "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
    }
    running = {}
    for name, command in stage.commands.items():
        if _finished(logs, stage, name).exists():
            continue
        with (logs / f"{name}.log").open("a") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            running[name] = subprocess.Popen(
                command, cwd=work, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
    try:
        statuses = {name: process.wait() for name, process in running.items()}
    finally:
        for name, process in running.items():
            if process.poll() is None:
                process.terminate()
            # A command that is through is not run again if its neighbour was cut short.
            if process.wait() == 0:
                _finished(logs, stage, name).touch()
    for name, status in statuses.items():
        if status != 0:
            log_file = logs / f"{name}.log"
            tail = log_file.read_text(errors="replace").splitlines()[-15:]
            print("\n".join(tail), file=sys.stderr)
            raise StageFailed(f"{name} ended with status {status}; its log is {log_file}")


def _finished(logs: Path, stage: Stage, name: str) -> Path:
    """The marker of one command of a stage."""
    return logs / f"{stage.name}.{name}.finished"
