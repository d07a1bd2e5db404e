"""Making a store, from any number of processes, in any order, in as many runs as it takes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from specforge_dstill.errors import UserError
from specforge_dstill.files import (
    reading,
    remove_quietly,
    sync_folder,
    temporary_files,
    temporary_path,
    write_atomically,
    writing,
)
from specforge_dstill.trajectory_store.checksums import HashingFile, sha256_of
from specforge_dstill.trajectory_store.folder import COLLECT_AGAIN, claim, read_manifest
from specforge_dstill.trajectory_store.format import ShardFormat, batches
from specforge_dstill.trajectory_store.identity import StoreIdentity, StorePlan, samples_hash
from specforge_dstill.trajectory_store.manifest import Manifest, ShardEntry
from specforge_dstill.trajectory_store.record import SampleRecord
from specforge_dstill.trajectory_store.shard import (
    ForeignShardError,
    Shard,
    ShardError,
    open_shard,
)
from specforge_dstill.trajectory_store.sharding import partition, shard_name, shard_samples

_CHECKSUM_SUFFIX = ".sha256"


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

    Errors: ``UserError`` when the folder holds a store made with other settings, or cannot be
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
        if len(set(sample_ids)) != len(sample_ids):
            raise ValueError("a sample id appears twice")
        self.folder = Path(folder)
        self.sample_ids = sample_ids
        self._own = StorePlan(
            identity=identity,
            samples=len(sample_ids),
            samples_hash=samples_hash(sample_ids),
            shard_size=shard_size,
            logp_dtype=logp_dtype,
        )
        self.plan = claim(self.folder, self._own)

    @property
    def uri(self) -> str:
        return str(self.folder)

    def missing(self, ranks: int = 1, rank: int = 0) -> list[int]:
        """This rank's share of the shards that are absent or not whole.

        The shares of all ranks are disjoint and complete only if every rank asks before any rank
        writes: put a barrier between this call and the first :meth:`write_shard`.

        Errors: ``UserError`` for a whole shard that was made with other settings.
        """
        missing = [i for i in range(self.plan.shards) if self._whole_shard(i) is None]
        return list(partition(missing, ranks, rank))

    def samples_of(self, index: int) -> Sequence[str]:
        """The ids of the samples of shard ``index``, in order."""
        return shard_samples(self.sample_ids, index, self.plan.shard_size)

    def write_shard(self, index: int, records: Iterable[SampleRecord]) -> Path:
        """Write one shard; ``records`` must be its samples in order, and may be a generator.

        Returns the shard's path.

        Errors: ``UserError`` when the file system refuses or a log-probability is NaN;
        ``ValueError`` for records that do not fit. Nothing is left behind then.
        """
        path = self.folder / shard_name(index, self.plan.shards)
        form = ShardFormat.of(self._own, index)
        written: list[str] = []
        temporary = temporary_path(path)
        try:
            with writing(path):
                file = HashingFile(temporary)
            try:
                sink = pa.ipc.new_file(file, form.schema)
                for batch in batches(records, form, self._own):
                    written += batch["sample_id"].to_pylist()
                    with writing(path):
                        sink.write_batch(batch)
                if written != list(self.samples_of(index)):
                    raise ValueError(f"these are not the samples of shard {index}, in order")
                with writing(path):
                    sink.close()
                    file.sync()
            finally:
                with contextlib.suppress(OSError):  # bytes that could not be written: raised above
                    file.close()
            write_atomically(_checksum_path(path), file.sha256.encode())
            with writing(path):
                temporary.replace(path)
        finally:
            remove_quietly(temporary)
        sync_folder(self.folder)
        return path

    def finish(self) -> Manifest:
        """Enter every shard in the manifest, which completes the store; remove what is left over.

        For one process, when no other is writing. Repeating it changes nothing.

        Errors: ``UserError`` when shards are missing or the file system refuses.
        """
        previous = read_manifest(self.folder)
        known = {entry.name: entry for entry in previous.shards} if previous else {}
        entries: list[ShardEntry] = []
        versions: list[dict[str, str]] = []
        for index in range(self.plan.shards):
            shard = self._whole_shard(index)
            if shard is None:
                continue
            name = shard_name(index, self.plan.shards)
            entries.append(self._entry(name, shard, known.get(name)))
            if shard.form.versions not in versions:
                versions.append(shard.form.versions)
        absent = self.plan.shards - len(entries)
        if absent:
            raise UserError(
                f"trajectory store {self.folder}: collection is not finished: {absent} of "
                f"{self.plan.shards} shards missing; {COLLECT_AGAIN}"
            )
        manifest = Manifest(plan=self.plan, shards=tuple(entries), versions=tuple(versions))
        manifest.write(self.folder)
        for leftover in (*temporary_files(self.folder), *self.folder.glob(f"*{_CHECKSUM_SUFFIX}")):
            remove_quietly(leftover)
        return manifest

    def _whole_shard(self, index: int) -> Shard | None:
        """Shard ``index`` if its file is there, whole, and holds the right samples."""
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
        return shard if shard.sample_ids == list(self.samples_of(index)) else None

    def _entry(self, name: str, shard: Shard, known: ShardEntry | None) -> ShardEntry:
        path = self.folder / name
        with reading(path):
            size = path.stat().st_size
            beside = _checksum_path(path)
            if beside.exists():
                checksum = beside.read_text()
            elif known is not None and known.bytes == size:
                checksum = known.sha256
            else:
                checksum = sha256_of(path)
        return ShardEntry(name, len(shard.sample_ids), shard.blocks, size, checksum)


def _checksum_path(shard: Path) -> Path:
    return shard.with_name(shard.name + _CHECKSUM_SUFFIX)
