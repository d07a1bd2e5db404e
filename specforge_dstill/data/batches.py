"""Grouping samples of different lengths into padded batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def batches_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Groups of indices, longest first, whose padded size stays within ``budget`` tokens."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batch: list[int] = []
    for index in order:
        if batch and lengths[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
