"""Work in several threads: results in order, so many at a time, given up at the first error."""

from __future__ import annotations

import threading
import time

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
    assert len(begun) < 300
