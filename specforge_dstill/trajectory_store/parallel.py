"""Looking at many files at once: waiting for a disk or a network is most of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 8
_PIECE = 32


def threaded(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """``map(function, items)``, in order, on a few threads; the first error is raised."""
    pieces = [items[at : at + _PIECE] for at in range(0, len(items), _PIECE)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for results in pool.map(lambda piece: [function(item) for item in piece], pieces):
            yield from results
