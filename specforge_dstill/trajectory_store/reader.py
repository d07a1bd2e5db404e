"""Reading a complete store: memory-mapped, by sample id, from any number of threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from specforge_dstill.damage import Damage
from specforge_dstill.errors import UserError
from specforge_dstill.trajectory_store.folder import COLLECT_AGAIN
from specforge_dstill.trajectory_store.identity import samples_hash
from specforge_dstill.trajectory_store.manifest import Manifest
from specforge_dstill.trajectory_store.parallel import threaded
from specforge_dstill.trajectory_store.protocol import TrajectoryReader
from specforge_dstill.trajectory_store.record import SampleRecord
from specforge_dstill.trajectory_store.shard import Shard, ShardError, open_shard
from specforge_dstill.trajectory_store.verify import (
    beside_shards,
    require_manifest,
    size_damage,
    verify_store,
)

# A mapped shard is one memory map (its descriptor is closed); Linux allows a process 65,530.
_MAPPED_SHARDS = 16_384


class ShardedStore(TrajectoryReader):
    """Records by sample id, out of shards that a subclass opens."""

    def __init__(self, uri: str, manifest: Manifest, sample_ids: tuple[str, ...]) -> None:
        self.uri = uri
        self.manifest = manifest
        self.sample_ids = sample_ids
        self._row = {sample_id: row for row, sample_id in enumerate(sample_ids)}
        self._shard = lru_cache(maxsize=_MAPPED_SHARDS)(self._open_shard)

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self._row

    def __getitem__(self, sample_id: str) -> SampleRecord:
        row = self._row.get(sample_id)
        if row is None:
            raise UserError(
                f"trajectory store {self.uri} has no sample {sample_id}; it was collected from "
                "another feature cache, or from fewer samples: collect from this cache"
            )
        shard, row_in_shard = divmod(row, self.manifest.plan.shard_size)
        return self._shard(shard).record(row_in_shard)

    def in_order(self) -> bool:
        """Whether the small files beside the shards, which reading does without, are whole."""
        raise NotImplementedError

    def _open_shard(self, index: int) -> Shard:
        """Map shard ``index``. Raises: ``UserError`` when it is not as the manifest says."""
        raise NotImplementedError


class TrajectoryStore(ShardedStore):
    """A store in a folder, ``folder``."""

    def __init__(self, folder: Path, manifest: Manifest, sample_ids: tuple[str, ...]) -> None:
        super().__init__(str(folder), manifest, sample_ids)
        self.folder = folder

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> TrajectoryStore:
        """Open a complete store; check the size and the Arrow structure of every shard.

        Checksums are :meth:`verify`'s business: this reads only the ends of the files.

        Raises: ``UserError`` when the collection is not finished or a shard is missing, truncated
        or damaged.
        """
        folder = Path(folder)
        manifest = require_manifest(folder)
        sample_ids: list[str] = []
        damaged: list[Damage] = []
        indices = range(len(manifest.shards))
        for found in threaded(lambda index: _look(folder, manifest, index), indices):
            if isinstance(found, Damage):
                damaged.append(found)
            else:
                sample_ids += found
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

    def in_order(self) -> bool:
        return not beside_shards(self.folder, self.manifest)

    def verify(self, *, progress: Callable[[int], None] = lambda count: None) -> list[Damage]:
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


def _look(folder: Path, manifest: Manifest, index: int) -> Damage | list[str]:
    """The sample ids of one shard, or what is wrong with it."""
    entry = manifest.shards[index]
    damage = size_damage(folder, entry)
    if damage is not None:
        return damage
    try:
        return open_shard(folder, manifest.plan, index).sample_ids
    except ShardError as error:
        return Damage(entry.name, str(error))
