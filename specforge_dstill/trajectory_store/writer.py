"""Making a store, from any number of processes, in any order, in as many runs as it takes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specforge_dstill.checksums import sha256_of
from specforge_dstill.errors import UserError
from specforge_dstill.files import (
    reading,
    remove_quietly,
    temporary_files,
    write_atomically,
)
from specforge_dstill.trajectory_store.folder import COLLECT_AGAIN, claim, read_manifest
from specforge_dstill.trajectory_store.identity import StoreIdentity, StorePlan
from specforge_dstill.trajectory_store.manifest import Manifest, ShardEntry
from specforge_dstill.trajectory_store.parallel import threaded
from specforge_dstill.trajectory_store.record import SampleRecord
from specforge_dstill.trajectory_store.samples_file import SAMPLES_FILE, samples_bytes
from specforge_dstill.trajectory_store.shard import (
    ForeignShardError,
    ShardError,
    open_shard,
)
from specforge_dstill.trajectory_store.shard_file import (
    CHECKSUM_SUFFIX,
    write_shard_file,
    written_checksum,
)
from specforge_dstill.trajectory_store.sharding import partition, shard_name, shard_samples


class StoreWriter:
    """Writes the shards of one store.

    Every process of a run makes its own writer with the same arguments, writes the shards that
    :meth:`missing` gives it, and one of them calls :meth:`finish` when all are done. A shard is
    complete or absent at every moment, and so is the store: it is complete when its manifest is
    there. A second run writes what the first left out.

    A shard's checksum is that of the bytes as they were written. Until the manifest holds it, it
    lies beside the shard in a small file.

    Args:
        folder: made if needed.
        identity: the settings of this run.
        sample_ids: every sample of the store, in order, each once.
        shard_size: samples a shard.
        logp_dtype: "float16" or "float32" on disk.

    Raises: ``UserError`` when the folder holds a store made with other settings, or cannot be
    written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        identity: StoreIdentity,
        sample_ids: Sequence[str],
        shard_size: int,
        logp_dtype: str = "float16",
    ) -> None:
        self.folder = Path(folder)
        self.sample_ids = sample_ids
        self._own = StorePlan.of_samples(
            sample_ids, identity=identity, shard_size=shard_size, logp_dtype=logp_dtype
        )
        self.plan = claim(self.folder, self._own)
        self._own = self._own.in_store_of(self.plan)
        self._seen: dict[int, _Seen] = {}

    @property
    def uri(self) -> str:
        return str(self.folder)

    def missing(self, ranks: int = 1, rank: int = 0) -> list[int]:
        """This rank's share of the shards that are absent or not whole.

        The shares of all ranks are disjoint and complete only if every rank asks before any rank
        writes: put a barrier between this call and the first :meth:`write_shard`.

        Raises: ``UserError`` for a whole shard that was made with other settings.
        """
        whole = self._whole()
        missing = [index for index in range(self.plan.shards) if index not in whole]
        return list(partition(missing, ranks, rank))

    def samples_of(self, index: int) -> Sequence[str]:
        """The ids of the samples of shard ``index``, in order."""
        return shard_samples(self.sample_ids, index, self.plan.shard_size)

    def write_shard(self, index: int, records: Iterable[SampleRecord]) -> Path:
        """Write one shard; ``records`` must be its samples in order, and may be a generator.

        Returns the shard's path.

        Raises: ``UserError`` when the file system refuses or a log-probability is NaN;
        ``ValueError`` for records that do not fit. Nothing is left behind then.
        """
        return write_shard_file(self.folder, self._own, index, self.samples_of(index), records)

    def finish(self) -> Manifest:
        """Enter every shard in the manifest, which completes the store; remove what is left over.

        For one process, when no other is writing. Repeating it changes nothing.

        Raises: ``UserError`` when shards are missing or the file system refuses.
        """
        previous = read_manifest(self.folder)
        known = {entry.name: entry for entry in previous.shards} if previous else {}
        whole = self._whole()
        absent = self.plan.shards - len(whole)
        if absent:
            raise UserError(
                f"trajectory store {self.folder}: collection is not finished: {absent} of "
                f"{self.plan.shards} shards missing; {COLLECT_AGAIN}"
            )
        entries: list[ShardEntry] = []
        versions: list[dict[str, str]] = []
        for index in range(self.plan.shards):
            name = shard_name(index, self.plan.shards)
            entries.append(self._entry(name, whole[index], known.get(name)))
            if whole[index].versions not in versions:
                versions.append(whole[index].versions)
        manifest = Manifest(plan=self.plan, shards=tuple(entries), versions=tuple(versions))
        self._list_samples()
        manifest.write(self.folder)
        remove_leftovers(self.folder)
        return manifest

    def _whole(self) -> dict[int, _Seen]:
        """The shards that are whole, by index. Those that have not changed since the last call
        are not opened again: the end of a collection is waited for by calling this."""
        stamps = {}
        with reading(self.folder), os.scandir(self.folder) as files:
            for file in files:
                with contextlib.suppress(FileNotFoundError):  # a temporary file's, by now renamed
                    stamps[file.name] = _stamp(file.stat())
        names = [shard_name(index, self.plan.shards) for index in range(self.plan.shards)]
        current = {i: stamps[name] for i, name in enumerate(names) if name in stamps}
        self._seen = {i: seen for i, seen in self._seen.items() if current.get(i) == seen.stamp}
        new = [index for index in current if index not in self._seen]
        looks = threaded(lambda index: self._look(index, current[index]), new)
        found = dict(zip(new, looks, strict=True))
        self._seen |= {index: seen for index, seen in found.items() if seen is not None}
        return self._seen

    def _look(self, index: int, stamp: tuple[int, ...]) -> _Seen | None:
        """Shard ``index`` if its file is whole and holds the right samples."""
        try:
            shard = open_shard(self.folder, self.plan, index)
        except ForeignShardError as error:
            name = shard_name(index, self.plan.shards)
            raise UserError(
                f"{self.folder / name} was made with other settings than this run's; "
                "use another folder, or delete that file"
            ) from error
        except ShardError:
            return None
        if shard.sample_ids != list(self.samples_of(index)):
            return None
        return _Seen(stamp, len(shard.sample_ids), shard.blocks, shard.form.versions)

    def _entry(self, name: str, seen: _Seen, known: ShardEntry | None) -> ShardEntry:
        path = self.folder / name
        with reading(path):
            size = path.stat().st_size
            checksum = written_checksum(path)
            if checksum is None and known is not None and known.bytes == size:
                checksum = known.sha256
            checksum = checksum or sha256_of(path)
        return ShardEntry(name, seen.rows, seen.blocks, size, checksum)

    def _list_samples(self) -> None:
        path = self.folder / SAMPLES_FILE
        if not path.exists() or sha256_of(path) != self.plan.samples_hash:
            write_atomically(path, samples_bytes(self.sample_ids))


def remove_leftovers(folder: Path) -> None:
    """Remove what a complete store does not need: killed writers' files, and checksums that the
    manifest holds by now."""
    for leftover in (*temporary_files(folder), *folder.glob(f"*{CHECKSUM_SUFFIX}")):
        remove_quietly(leftover)


@dataclass(frozen=True)
class _Seen:
    """A shard that was whole when it was looked at: how its file was, and what it holds."""

    stamp: tuple[int, ...]
    rows: int
    blocks: int
    versions: dict[str, str]


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    """What changes when a file is replaced or written."""
    return status.st_ino, status.st_size, status.st_mtime_ns
