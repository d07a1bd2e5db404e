"""Stores by URI: which class reads and writes them, and what a caller hears of finished shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specforge_dstill.trajectory_store import (
    TrajectoryStore,
    open_store,
    open_writer,
    shard_samples,
)
from tests.test_trajectory_store import IDENTITY, assert_same, make_records


def write_all(uri: str, samples: int = 10, **rest: Any) -> None:
    """Records of ``make_records`` in shards of 3."""
    records = make_records(samples)
    ids = [record.sample_id for record in records]
    words: dict[str, Any] = {"shard_size": 3, "logp_dtype": "float16", **rest}
    writer = open_writer(uri, identity=IDENTITY, sample_ids=ids, **words)
    for index in writer.missing():
        writer.write_shard(index, shard_samples(records, index, 3))
    writer.finish()


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_folder_is_the_folder_store(tmp_path: Path, prefix: str) -> None:
    uri = f"{prefix}{tmp_path / 'store'}"
    write_all(uri, logp_dtype="float32")
    store = open_store(uri)
    assert isinstance(store, TrajectoryStore)
    assert store.folder == tmp_path / "store"
    for record in make_records(10):
        assert_same(store[record.sample_id], record)


def test_each_finished_shard_is_told_once(tmp_path: Path) -> None:
    told: list[tuple[str, int, Path | None, bool]] = []

    def on_shard(*, uri: str, index: int, path: Path | None) -> None:
        told.append((uri, index, path, path is not None and path.exists()))

    write_all(str(tmp_path), on_shard=on_shard)
    paths = [tmp_path / f"shard-{i:05d}-of-00004.arrow" for i in range(4)]
    assert told == [(path.as_uri(), i, path, True) for i, path in enumerate(paths)]
    write_all(str(tmp_path), on_shard=on_shard)
    assert len(told) == 4
