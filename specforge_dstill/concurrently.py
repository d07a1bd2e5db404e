"""Work in several threads, given up at the first error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def run_concurrently(
    work: Callable[[_In], _Out], items: Sequence[_In], *, at_a_time: int
) -> list[_Out]:
    """What ``work`` gives for each of ``items``, in their order; the first error is raised."""
    with ThreadPoolExecutor(at_a_time) as pool:
        tasks = [pool.submit(work, item) for item in items]
        try:
            wait(tasks, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    # A task is cancelled only where another one failed.
    failed = [task for task in tasks if not task.cancelled() and task.exception()]
    return [task.result() for task in failed or tasks]
