"""Reading a complete store: memory-mapped, by sample id, from any number of threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from specforge_dstill.errors import UserError
from specforge_dstill.trajectory_store.folder import COLLECT_AGAIN
from specforge_dstill.trajectory_store.identity import samples_hash
from specforge_dstill.trajectory_store.manifest import Manifest
from specforge_dstill.trajectory_store.protocol import TrajectoryReader
from specforge_dstill.trajectory_store.record import SampleRecord
from specforge_dstill.trajectory_store.shard import Shard, ShardError, open_shard
from specforge_dstill.trajectory_store.verify import (
    Damage,
    require_manifest,
    size_damage,
    verify_store,
)

# A mapped shard is one memory map (its descriptor is closed); Linux allows a process 65,530.
_MAPPED_SHARDS = 16_384


class TrajectoryStore(TrajectoryReader):
    """A store in a folder, ``folder``."""

    def __init__(self, folder: Path, manifest: Manifest, sample_ids: tuple[str, ...]) -> None:
        self.uri = str(folder)
        self.folder = folder
        self.manifest = manifest
        self.sample_ids = sample_ids
        self._row = {sample_id: row for row, sample_id in enumerate(sample_ids)}
        self._shard = lru_cache(maxsize=_MAPPED_SHARDS)(self._open_shard)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> TrajectoryStore:
        """Open a complete store; check the size and the Arrow structure of every shard.

        Checksums are :meth:`verify`'s business: this reads only the ends of the files.

        Errors: ``UserError`` when the collection is not finished or a shard is missing, truncated
        or damaged.
        """
        folder = Path(folder)
        manifest = require_manifest(folder)
        sample_ids: list[str] = []
        damaged: list[Damage] = []
        for index, entry in enumerate(manifest.shards):
            damage = size_damage(folder, entry)
            if damage is None:
                try:
                    sample_ids += open_shard(folder, manifest.plan, index).sample_ids
                except ShardError as error:
                    damage = Damage(entry.name, str(error))
            if damage is not None:
                damaged.append(damage)
        if damaged:
            more = f" (and {len(damaged) - 1} more shards)" if len(damaged) > 1 else ""
            raise UserError(
                f"trajectory store {folder} is damaged: {damaged[0].piece}: "
                f"{damaged[0].problem}{more}; {COLLECT_AGAIN} to make it anew"
            )
        if samples_hash(sample_ids) != manifest.plan.samples_hash:
            raise UserError(
                f"trajectory store {folder} is damaged: its sample ids are not those it was made "
                "for; collect again into another folder"
            )
        return cls(folder, manifest, tuple(sample_ids))

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self._row

    def __getitem__(self, sample_id: str) -> SampleRecord:
        """The record of one sample, in memory of its own. Safe to call from several threads.

        Errors: ``UserError`` naming the sample and the store when it is not there.
        """
        row = self._row.get(sample_id)
        if row is None:
            raise UserError(
                f"trajectory store {self.folder} has no sample {sample_id}; it was collected from "
                "another feature cache, or from fewer samples: collect from this cache"
            )
        shard, row_in_shard = divmod(row, self.manifest.plan.shard_size)
        return self._shard(shard).record(row_in_shard)

    def verify(self, *, progress: Callable[[int], None] | None = None) -> list[Damage]:
        """Every damaged or missing piece, by checksum; see :func:`verify_store`."""
        return verify_store(self.folder, progress=progress)

    def _open_shard(self, index: int) -> Shard:
        try:
            return open_shard(self.folder, self.manifest.plan, index)
        except ShardError as error:
            name = self.manifest.shards[index].name
            raise UserError(
                f"{self.folder / name} has changed since the store was opened: {error}"
            ) from error
