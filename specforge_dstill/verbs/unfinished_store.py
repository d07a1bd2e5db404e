"""Looking at a collection that is not finished: the shards that are there, as a store."""

from __future__ import annotations

from pathlib import Path

from specforge_dstill.errors import UserError
from specforge_dstill.trajectory_store.folder import read_manifest, read_plan
from specforge_dstill.trajectory_store.identity import StorePlan
from specforge_dstill.trajectory_store.manifest import Manifest, ShardEntry
from specforge_dstill.trajectory_store.protocol import TrajectoryReader
from specforge_dstill.trajectory_store.record import SampleRecord
from specforge_dstill.trajectory_store.shard import Shard, ShardError, open_shard
from specforge_dstill.trajectory_store.sharding import shard_name


class UnfinishedStore(TrajectoryReader):
    """The whole shards of a local store without a manifest; to be looked at, not trained from.

    Its manifest lists those shards, without checksums, beside the plan of all of them.
    """

    def __init__(self, folder: Path, plan: StorePlan) -> None:
        self.uri = str(folder)
        self._rows: dict[str, tuple[Shard, int]] = {}
        entries = []
        for index in range(plan.shards):
            try:
                shard = open_shard(folder, plan, index)
            except ShardError:
                continue  # absent, or being written
            path = folder / shard_name(index, plan.shards)
            count = len(shard.sample_ids)
            entries.append(ShardEntry(path.name, count, shard.blocks, path.stat().st_size, ""))
            self._rows.update({name: (shard, row) for row, name in enumerate(shard.sample_ids)})
        self.sample_ids = tuple(self._rows)
        self.manifest = Manifest(plan=plan, shards=tuple(entries), versions=())

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self._rows

    def __getitem__(self, sample_id: str) -> SampleRecord:
        if sample_id not in self._rows:
            raise UserError(f"trajectory store {self.uri} has no sample {sample_id} yet")
        shard, row = self._rows[sample_id]
        return shard.record(row)


def unfinished_plan(path: str) -> StorePlan | None:
    """The plan of a local store whose collection is not finished; None for any other path."""
    folder = Path(path)
    if "://" in path or not folder.is_dir() or read_manifest(folder) is not None:
        return None
    return read_plan(folder)
