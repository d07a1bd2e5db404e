"""Reading a store from any file system that fsspec knows: shards are copied here on first use."""

from __future__ import annotations

from collections.abc import Mapping

from specforge_dstill.checksums import sha256_of
from specforge_dstill.errors import UserError
from specforge_dstill.files import json_bytes, reading
from specforge_dstill.trajectory_store.cache import copies_folder
from specforge_dstill.trajectory_store.folder import COLLECT_AGAIN, manifest_in
from specforge_dstill.trajectory_store.identity import IDENTITY_FILE
from specforge_dstill.trajectory_store.manifest import MANIFEST_FILE, Manifest
from specforge_dstill.trajectory_store.place import refuse_cache
from specforge_dstill.trajectory_store.reader import ShardedStore
from specforge_dstill.trajectory_store.remote_folder import RemoteFolder
from specforge_dstill.trajectory_store.samples_file import SAMPLES_FILE, parse_samples
from specforge_dstill.trajectory_store.shard import Shard, ShardError, open_shard


class RemoteStore(ShardedStore):
    """A store elsewhere, with copies of its shards in this machine's cache folder.

    A copy is checked against the manifest's checksum when it is made, and by its size and
    structure when it is opened. Any number of processes share the copies.
    """

    def __init__(
        self, remote: RemoteFolder, manifest: Manifest, sample_ids: tuple[str, ...]
    ) -> None:
        super().__init__(remote.uri, manifest, sample_ids)
        self._remote = remote
        self._copies = copies_folder(manifest.digest)

    @classmethod
    def open(cls, uri: str) -> RemoteStore:
        """Open a complete store; check that every shard is there in its size, by one listing.

        Raises: ``UserError`` when the collection is not finished, a shard is missing or has
        another size, or the storage cannot be reached.
        """
        remote = RemoteFolder.at(uri)
        refuse_cache(remote.uri, remote.read)
        manifest = manifest_in(remote.read(MANIFEST_FILE), remote.uri)
        sizes = remote.sizes()
        if manifest is None:
            raise _incomplete(remote.uri, sizes)
        _require_sizes(remote.uri, manifest, sizes)
        return cls(remote, manifest, _sample_ids(remote, manifest))

    def in_order(self) -> bool:
        identity = self._remote.read(IDENTITY_FILE)
        return identity == json_bytes(self.manifest.plan.to_json())

    def _open_shard(self, index: int) -> Shard:
        try:
            return self._copy(index)
        except ShardError:
            pass  # no copy yet, or a damaged one
        entry = self.manifest.shards[index]
        self._remote.download(entry.name, self._copies / entry.name, entry.sha256)
        try:
            return self._copy(index)
        except ShardError as error:
            raise UserError(
                f"{self.uri}/{entry.name} is no shard of this store: {error}; delete it and "
                f"{COLLECT_AGAIN}"
            ) from error

    def _copy(self, index: int) -> Shard:
        """The copy of shard ``index``. Raises: ``ShardError`` when there is none that is whole."""
        entry = self.manifest.shards[index]
        try:
            size = (self._copies / entry.name).stat().st_size
        except OSError as error:
            raise ShardError("there is no copy") from error
        if size != entry.bytes:
            raise ShardError(f"its copy holds {size} bytes instead of {entry.bytes}")
        return open_shard(self._copies, self.manifest.plan, index)


def _incomplete(uri: str, sizes: Mapping[str, int]) -> UserError:
    if not sizes:
        return UserError(
            f"there is no trajectory store in {uri}; run --mode dstill_collect first, or check "
            "the name and your rights to it"
        )
    return UserError(
        f"trajectory store {uri}: collection is not finished: {MANIFEST_FILE} missing; "
        f"{COLLECT_AGAIN}"
    )


def _require_sizes(uri: str, manifest: Manifest, sizes: Mapping[str, int]) -> None:
    wrong = [entry for entry in manifest.shards if sizes.get(entry.name) != entry.bytes]
    if not wrong:
        return
    first, more = wrong[0], f" (and {len(wrong) - 1} more shards)" if len(wrong) > 1 else ""
    size = sizes.get(first.name)
    problem = "missing" if size is None else f"{size} bytes instead of {first.bytes}"
    raise UserError(
        f"trajectory store {uri} is damaged: {first.name}: {problem}{more}; {COLLECT_AGAIN} to "
        "make it anew"
    )


def _sample_ids(remote: RemoteFolder, manifest: Manifest) -> tuple[str, ...]:
    """The ids of the store's samples, copied once as a shard is."""
    path = copies_folder(manifest.digest) / SAMPLES_FILE
    if not path.exists() or sha256_of(path) != manifest.plan.samples_hash:
        remote.download(SAMPLES_FILE, path, manifest.plan.samples_hash)
    with reading(path):
        return parse_samples(path.read_bytes())
