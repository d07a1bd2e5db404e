"""What is made does not depend on who makes it, nor on how much at once."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from specforge_dstill.trajectory_store import open_store, partition, shard_count
from tests.faults.conftest import STORE, Works
from tests.faults.jobs import finish

# Ranks, batch size, shard size: every value with every shard size.
RUNS = ((1, 1, 5), (2, 7, 5), (3, 1, 5), (1, 7, 64), (2, 1, 64), (3, 7, 64))


def test_ranks_batches_and_shards_leave_the_records_as_they_are(
    works: Works, tmp_path: Path
) -> None:
    made: dict[int, list[dict[str, bytes]]] = {5: [], 64: []}
    folders = []
    for ranks, batch, shard in RUNS:
        folder = works.folder(tmp_path / f"{ranks}-{batch}-{shard}")
        finish(
            folder,
            (
                *works.collect.words,
                f"training.batch_size={batch}",
                f"dstill.collect.shard_size={shard}",
            ),
            ranks=ranks,
        )
        made[shard].append(works.collect.made(folder))
        folders.append(folder)
    for stores in made.values():
        assert all(store == stores[0] for store in stores)
    stores = [open_store(str(folder / STORE)) for folder in (folders[0], folders[-1])]
    for sample_id in stores[0].sample_ids:
        one, other = (store[sample_id] for store in stores)
        assert one.token_hash == other.token_hash
        assert torch.equal(one.anchors, other.anchors)
        for name in ("endpoint", "commit_pass", "top_ids", "top_logp"):
            assert torch.equal(getattr(one.trajectory, name), getattr(other.trajectory, name))


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_cache_does_not_depend_on_the_ranks(works: Works, tmp_path: Path, ranks: int) -> None:
    folder = works.folder(tmp_path)
    finish(folder, works.capture.words, ranks=ranks)
    works.capture.check(folder)


@pytest.mark.parametrize("shard_size", [1, 64])
def test_a_thousand_ranks_share_ten_million_samples(shard_size: int) -> None:
    """Disjoint and complete; even to one shard, which is one sample with shard_size 1."""
    samples, ranks = 10_000_000, 1000
    begun = time.perf_counter()
    work = range(shard_count(samples, shard_size))
    shares = [partition(work, ranks, rank) for rank in range(ranks)]
    owners = np.zeros(len(work), dtype=np.uint8)
    for share in shares:
        assert isinstance(share, range)
        owners[share.start : share.stop : share.step] += 1
    assert (owners == 1).all()
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert time.perf_counter() - begun < 1
