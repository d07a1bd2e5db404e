"""The trajectory store: what the frozen teacher did, once per training block, on disk.

A store is a folder of Arrow IPC files ("shards") with one row per training sample, an
``identity.json`` that says what a collection run was asked to make, and a ``manifest.json`` that
exists only when the collection is complete. :func:`open_writer` makes it, from any number of
processes; :func:`open_store` reads it through memory maps, by sample id. Nothing in it is pickled.
"""

from __future__ import annotations

from specforge_dstill.trajectory_store.backends import (
    check_finished,
    check_uri,
    open_store,
    open_writer,
    small_files,
)
from specforge_dstill.trajectory_store.identity import StoreIdentity, StorePlan
from specforge_dstill.trajectory_store.manifest import Manifest, ShardEntry
from specforge_dstill.trajectory_store.protocol import TrajectoryReader, TrajectoryWriter
from specforge_dstill.trajectory_store.reader import TrajectoryStore
from specforge_dstill.trajectory_store.record import SampleRecord
from specforge_dstill.trajectory_store.sharding import (
    partition,
    shard_count,
    shard_name,
    shard_samples,
)
from specforge_dstill.trajectory_store.small_files import SmallFiles
from specforge_dstill.trajectory_store.verify import verify_store
from specforge_dstill.trajectory_store.writer import StoreWriter

__all__ = [
    "Manifest",
    "SampleRecord",
    "ShardEntry",
    "SmallFiles",
    "StoreIdentity",
    "StorePlan",
    "StoreWriter",
    "TrajectoryReader",
    "TrajectoryStore",
    "TrajectoryWriter",
    "check_finished",
    "check_uri",
    "open_store",
    "open_writer",
    "partition",
    "shard_count",
    "shard_name",
    "shard_samples",
    "small_files",
    "verify_store",
]
