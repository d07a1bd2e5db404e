"""Making a store on any file system that fsspec knows: shards are written here, then sent."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence

from specforge_dstill.checksums import sha256_of
from specforge_dstill.errors import UserError
from specforge_dstill.files import make_folder, remove_quietly, temporary_files
from specforge_dstill.trajectory_store.cache import staging_folder
from specforge_dstill.trajectory_store.folder import COLLECT_AGAIN, claimed, manifest_in
from specforge_dstill.trajectory_store.identity import StoreIdentity, StorePlan
from specforge_dstill.trajectory_store.manifest import MANIFEST_FILE, Manifest, ShardEntry
from specforge_dstill.trajectory_store.record import SampleRecord
from specforge_dstill.trajectory_store.remote_folder import RemoteFolder
from specforge_dstill.trajectory_store.samples_file import SAMPLES_FILE, samples_bytes
from specforge_dstill.trajectory_store.shard import ShardError, open_shard
from specforge_dstill.trajectory_store.shard_file import (
    checksum_path,
    write_shard_file,
    written_checksum,
)
from specforge_dstill.trajectory_store.shard_note import ShardNote, note_name
from specforge_dstill.trajectory_store.sharding import partition, shard_name, shard_samples


class RemoteWriter:
    """Writes the shards of one store elsewhere; see :class:`TrajectoryWriter`.

    A shard is written to a folder of this machine, sent, checked there, and entered by its note;
    then the local file is removed. One that could not be sent stays, and the next run sends it
    without making it again. What is in place and whole is told by one listing and the notes.

    Args:
        uri: the store's folder.
        identity, sample_ids, shard_size, logp_dtype: as for :func:`open_writer`.

    Raises: ``UserError`` when a store made with other settings is there, or none can be written.
    """

    def __init__(
        self,
        uri: str,
        *,
        identity: StoreIdentity,
        sample_ids: Sequence[str],
        shard_size: int,
        logp_dtype: str,
    ) -> None:
        self._remote = RemoteFolder.at(uri)
        self._samples = sample_ids
        self._own = StorePlan.of_samples(
            sample_ids, identity=identity, shard_size=shard_size, logp_dtype=logp_dtype
        )
        self.plan = claimed(
            self.uri,
            self._own,
            names=self._remote.sizes,
            read=self._remote.read,
            create=self._remote.write,
        )
        self._own = self._own.in_store_of(self.plan)
        self._staging = staging_folder(self._own.digest)
        make_folder(self._staging)
        for leftover in temporary_files(self._staging):
            remove_quietly(leftover)
        self._notes: dict[str, ShardNote] = {}

    @property
    def uri(self) -> str:
        return self._remote.uri

    def missing(self, ranks: int = 1, rank: int = 0) -> list[int]:
        whole = self._whole(self._remote.sizes(), self._manifest())
        missing = [i for i in range(self.plan.shards) if self._name(i) not in whole]
        return list(partition(missing, ranks, rank))

    def samples_of(self, index: int) -> Sequence[str]:
        return shard_samples(self._samples, index, self.plan.shard_size)

    def write_shard(self, index: int, records: Iterable[SampleRecord]) -> str:
        path = self._staging / self._name(index)
        note = self._staged(index)
        if note is None:
            write_shard_file(self._staging, self._own, index, self.samples_of(index), records)
            note = self._staged(index)
        if note is None:
            raise UserError(f"{path} has changed since it was written; {COLLECT_AGAIN}")
        uri = self._remote.upload(path, path.name, note.entry.sha256)
        self._remote.write(note_name(path.name), note.to_bytes())
        remove_quietly(path)
        remove_quietly(checksum_path(path))
        return uri

    def finish(self) -> Manifest:
        sizes, previous = self._remote.sizes(), self._manifest()
        whole = self._whole(sizes, previous)
        absent = self.plan.shards - len(whole)
        if absent:
            raise UserError(
                f"trajectory store {self.uri}: collection is not finished: {absent} of "
                f"{self.plan.shards} shards missing; {COLLECT_AGAIN}"
            )
        versions = list(previous.versions) if previous else []
        for name in map(self._name, range(self.plan.shards)):
            note = self._notes.get(name)
            if note is not None and note.versions not in versions:
                versions.append(note.versions)
        entries = tuple(whole[self._name(index)] for index in range(self.plan.shards))
        manifest = Manifest(plan=self.plan, shards=entries, versions=tuple(versions))
        content = samples_bytes(self._samples)
        if sizes.get(SAMPLES_FILE) != len(content):
            self._remote.write(SAMPLES_FILE, content)
        if manifest != previous:
            self._remote.write(MANIFEST_FILE, manifest.to_bytes())
        shutil.rmtree(self._staging, ignore_errors=True)
        return manifest

    def _whole(self, sizes: Mapping[str, int], manifest: Manifest | None) -> dict[str, ShardEntry]:
        """The shards that are in place, by name: each has its size, and stands in the manifest or
        has a note."""
        names = [self._name(index) for index in range(self.plan.shards)]
        entered = {entry.name: entry for entry in manifest.shards} if manifest else {}
        whole = {
            name: entered[name]
            for name in names
            if name in entered and sizes.get(name) == entered[name].bytes
        }
        self._read_notes([n for n in names if n not in whole and note_name(n) in sizes], sizes)
        for name in names:
            note = self._notes.get(name)
            if name not in whole and note is not None and sizes.get(name) == note.entry.bytes:
                whole[name] = note.entry
        return whole

    def _read_notes(self, names: Sequence[str], sizes: Mapping[str, int]) -> None:
        """Read the notes that are new. Raises: ``UserError`` for a shard of another plan."""
        unread = [
            name
            for name in names
            if name not in self._notes or self._notes[name].entry.bytes != sizes.get(name)
        ]
        contents = self._remote.read_all([note_name(name) for name in unread])
        for name in unread:
            note = ShardNote.from_bytes(contents[note_name(name)])
            if note is None:
                continue
            if note.plan_digest != self.plan.digest:
                raise UserError(
                    f"{self.uri}/{name} was made with other settings than this run's; "
                    "use another folder, or delete that file"
                )
            self._notes[name] = note

    def _staged(self, index: int) -> ShardNote | None:
        """What to note of shard ``index`` if it lies in the staging folder, whole."""
        path = self._staging / self._name(index)
        try:
            shard = open_shard(self._staging, self._own, index)
        except ShardError:
            return None
        checksum = sha256_of(path)
        if shard.sample_ids != list(self.samples_of(index)) or checksum != written_checksum(path):
            return None
        entry = ShardEntry(
            path.name, len(shard.sample_ids), shard.blocks, path.stat().st_size, checksum
        )
        return ShardNote(entry, self.plan.digest, shard.form.versions)

    def _manifest(self) -> Manifest | None:
        return manifest_in(self._remote.read(MANIFEST_FILE), self.uri)

    def _name(self, index: int) -> str:
        return shard_name(index, self.plan.shards)
