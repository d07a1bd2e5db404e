"""Which samples are in which shard, and which process writes which shard: pure functions.

The files of a store and of a feature cache depend on the list of samples and the shard size alone,
never on the number of processes or the order of work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def shard_count(samples: int, shard_size: int) -> int:
    """How many shards ``samples`` samples fill, ``shard_size`` to a shard."""
    if samples < 0 or shard_size < 1:
        raise ValueError(f"samples={samples} and shard_size={shard_size} make no shards")
    return -(-samples // shard_size)


def shard_name(index: int, count: int) -> str:
    """File name of shard ``index`` (from 0) of ``count``: ``shard-00003-of-00040.arrow``."""
    if not 0 <= index < count:
        raise ValueError(f"there is no shard {index} among {count}")
    return f"shard-{index:05d}-of-{count:05d}.arrow"


def shard_samples(samples: Sequence[T], index: int, shard_size: int) -> Sequence[T]:
    """The samples of shard ``index``, in order: ``samples[i * size : (i + 1) * size]``."""
    return samples[index * shard_size : (index + 1) * shard_size]


def partition(work: Sequence[T], ranks: int, rank: int) -> Sequence[T]:
    """Rank ``rank``'s share of ``work``: the shares are disjoint, complete, and even to one."""
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of {ranks} ranks")
    return work[rank::ranks]
