"""Work in several threads, given up at the first error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def run_concurrently(
    work: Callable[[_In], _Out], items: Sequence[_In], *, at_a_time: int
) -> list[_Out]:
    """What ``work`` gives for each of ``items``, in their order; the first error is raised.

    After an error or a signal nothing more is begun, and what runs is waited for: see
    :func:`~specforge_dstill.stopping.ending_though_stuck` for work that may hang.
    """
    # Not a task an item: there may be millions.
    left = deque(range(len(items)))
    results: dict[int, _Out] = {}
    errors: list[BaseException] = []

    def take() -> int | None:
        try:
            return left.popleft()
        except IndexError:
            return None

    def work_off() -> None:
        try:
            for index in iter(take, None):
                results[index] = work(items[index])
        except BaseException as error:
            left.clear()
            errors.append(error)

    with ThreadPoolExecutor(at_a_time) as pool:
        tasks = [pool.submit(work_off) for _ in range(min(at_a_time, len(items)))]
        try:
            wait(tasks)
        finally:
            left.clear()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(items))]
