"""Which part of this machine each job gets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from specforge_dstill.errors import UserError
from specforge_dstill.files import locked

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LOCK = ".lock"


def slots(
    *, jobs: int, ranks: int, gpus: int | None, env: Mapping[str, str]
) -> list[dict[str, str]]:
    """The environment of each job that runs at a time.

    With GPUs, ``ranks`` of them for each, no GPU twice. Without, an equal share of the cores,
    unless OMP_NUM_THREADS is set: small models are far slower on threads that fight for cores.

    Args:
        gpus: that this process sees; None where a launcher of the user's places jobs elsewhere, on
            machines of other sizes: they get nothing of this one's.

    Raises:
        UserError: fewer GPUs than jobs times ranks.
    """
    if gpus is None:
        return [{}] * jobs
    if gpus == 0:
        threads = max(1, (os.cpu_count() or 1) // (jobs * ranks))
        own = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        return [{name: env.get(name, value) for name, value in own.items()}] * jobs
    if jobs * ranks > gpus:
        raise UserError(
            f"jobs: {jobs} trainings of ranks: {ranks} need {jobs * ranks} GPUs, and {gpus} are "
            "here; lower one of the two"
        )
    names = env.get(_VISIBLE, ",".join(map(str, range(gpus)))).split(",")
    parts = [names[i * ranks : (i + 1) * ranks] for i in range(jobs)]
    return [{_VISIBLE: ",".join(part)} for part in parts]


@contextmanager
def alone_in(folder: Path) -> Iterator[int]:
    """Hold the folder's lock, and give its descriptor: a process that inherits it holds it, too.

    So trainings that outlive a killed command keep a second one from starting them again.

    Raises:
        UserError: another command holds it.
    """
    busy = (
        f"{folder} is in use by another specforge-dstill ablate, or by trainings that one left "
        "running; wait for them, or end them"
    )
    with locked(folder / _LOCK, busy=busy) as lock:
        yield lock
