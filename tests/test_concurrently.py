"""Work in several threads: results in order, so many at a time, given up at the first error."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from specforge_dstill.concurrently import run_concurrently


def test_results_are_in_order_though_work_overlaps() -> None:
    together = threading.Barrier(3)

    def work(number: int) -> int:
        together.wait(timeout=5)
        return number * number

    assert run_concurrently(work, range(6), at_a_time=3) == [0, 1, 4, 9, 16, 25]
    assert run_concurrently(work, [], at_a_time=3) == []


def test_the_first_error_stops_what_has_not_begun() -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise ValueError("one")
        time.sleep(0.01)

    with pytest.raises(ValueError, match="one"):
        run_concurrently(work, range(300), at_a_time=1)
    assert begun == [0, 1]


def test_no_more_is_waiting_in_memory_than_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A future an item is 2 GB for a million."""
    submitted = []
    submit = ThreadPoolExecutor.submit

    def counted(pool: ThreadPoolExecutor, *work: Any) -> Any:
        submitted.append(work)
        return submit(pool, *work)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", counted)
    assert run_concurrently(abs, range(1000), at_a_time=2) == list(range(1000))
    assert len(submitted) == 2
