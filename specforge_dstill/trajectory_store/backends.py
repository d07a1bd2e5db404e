"""Which class reads or writes a store, chosen by its URI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from fsspec import available_protocols
from fsspec.implementations.memory import MemoryFileSystem

from specforge_dstill.errors import UserError, reason
from specforge_dstill.trajectory_store.identity import StoreIdentity
from specforge_dstill.trajectory_store.place import has_store, refuse_cache, refuse_foreign
from specforge_dstill.trajectory_store.protocol import TrajectoryReader, TrajectoryWriter
from specforge_dstill.trajectory_store.reader import TrajectoryStore
from specforge_dstill.trajectory_store.remote_folder import RemoteFolder
from specforge_dstill.trajectory_store.remote_reader import RemoteStore
from specforge_dstill.trajectory_store.remote_writer import RemoteWriter
from specforge_dstill.trajectory_store.small_files import LocalFiles, SmallFiles
from specforge_dstill.trajectory_store.verify import require_manifest
from specforge_dstill.trajectory_store.writer import StoreWriter

#: A shard elsewhere is sent as two files, each a commit on the Hub, which takes some 128 an hour.
HUB_SHARDS = 50
ENTRY_POINTS = "specforge_dstill.trajectory_stores"
_HUB = "hf://"
_LOCAL_SCHEMES = ("file", "local")


class Backend(Protocol):
    """Opens the stores of one kind of URI. A class that another package registers offers these
    two as class or static methods."""

    def open_reader(self, uri: str) -> TrajectoryReader: ...

    def open_writer(
        self,
        uri: str,
        *,
        identity: StoreIdentity,
        sample_ids: Sequence[str],
        shard_size: int,
        logp_dtype: str,
    ) -> TrajectoryWriter: ...


def open_store(uri: str) -> TrajectoryReader:
    """Open a complete store for reading.

    Args:
        uri: a folder, with or without ``file://``; else by its scheme, first what another package
            registers under :data:`ENTRY_POINTS`, then any file system of fsspec.

    Raises: ``UserError`` when there is none, it is not complete or damaged, or nothing here knows
    the scheme.
    """
    return _backend(uri).open_reader(uri)


def open_writer(
    uri: str,
    *,
    identity: StoreIdentity,
    sample_ids: Sequence[str],
    shard_size: int,
    logp_dtype: str,
) -> TrajectoryWriter:
    """Begin a store, or go on with one.

    Args:
        uri: where it is to be, as for :func:`open_store`.
        identity: the settings of this run.
        sample_ids: every sample of the store, in order, each once.
        shard_size: samples a shard.
        logp_dtype: "float16" or "float32" on disk.

    Raises: ``UserError`` when a store made with other settings is there, none can be written, or
    nothing here knows the scheme.
    """
    return _backend(uri).open_writer(
        uri,
        identity=identity,
        sample_ids=sample_ids,
        shard_size=shard_size,
        logp_dtype=logp_dtype,
    )


def check_uri(uri: str, *, shards: Callable[[], int] = int, unused: bool = False) -> None:
    """UserError unless a collection can go to ``uri``, as far as can be told beforehand.

    For a start that comes long before the first shard. Of places that are ours is asked that they
    can be reached, outlast this process, and hold a store, what is left of one, or nothing.

    Args:
        shards: counts those that the collection makes; asked for the Hugging Face Hub alone, which
            takes few, unless a store was begun there.
        unused: refuse a store that is there, too, begun or complete.
    """
    files = small_files(uri)
    if files is None:
        return
    if isinstance(files, RemoteFolder) and isinstance(files.innermost, MemoryFileSystem):
        raise UserError(
            f"{uri} is the memory of one process, and what is collected would end with it; "
            "name a folder or a storage server in dstill.trajectories"
        )
    names = files.names()
    if uri.startswith(_HUB) and not has_store(names) and (count := shards()) > HUB_SHARDS:
        raise UserError(
            f"{uri}: {count} shards would be {2 * count} commits, and the Hub takes about 128 an "
            "hour; collect into a folder and upload that (hf upload), or raise "
            "dstill.collect.shard_size"
        )
    refuse_cache(uri, files.read)
    refuse_foreign(uri, names)
    if unused and has_store(names):
        raise UserError(
            f"{uri} holds a trajectory store already, which a teacher that is yet to be trained "
            "cannot have collected; name another folder in dstill.trajectories"
        )


def check_finished(uri: str) -> None:
    """UserError unless a complete store is at ``uri``, as far as can be told without its shards.

    Those of other packages tell when they are opened.
    """
    backend = _backend(uri)
    if isinstance(backend, _Folder):
        require_manifest(Path(_path(uri)))
    elif isinstance(backend, _Remote):
        backend.open_reader(uri)


def small_files(uri: str) -> SmallFiles | None:
    """The files of the store's folder at ``uri``; None where another package keeps stores."""
    backend = _backend(uri)
    if isinstance(backend, _Remote):
        return RemoteFolder.at(uri)
    return LocalFiles(Path(_path(uri))) if isinstance(backend, _Folder) else None


def _backend(uri: str) -> Backend:
    scheme, separator, _ = uri.partition("://")
    if not separator or scheme in _LOCAL_SCHEMES:
        return _Folder()
    for entry in entry_points(group=ENTRY_POINTS, name=scheme):
        try:
            backend: Backend = entry.load()
        except Exception as error:
            raise UserError(
                f"{uri}: {entry.value}, which is registered for {scheme}://, cannot be loaded: "
                f"{reason(error)}"
            ) from error
        return backend
    if scheme.partition("::")[0] not in available_protocols():
        raise UserError(
            f"{uri}: nothing here stores under {scheme}://: it is no scheme of fsspec's, and no "
            f"installed package registers it under {ENTRY_POINTS}"
        )
    return _Remote()


class _Folder:
    """Stores in folders of this machine."""

    def open_reader(self, uri: str) -> TrajectoryReader:
        return TrajectoryStore.open(_path(uri))

    def open_writer(self, uri: str, **words: Any) -> TrajectoryWriter:
        return StoreWriter(_path(uri), **words)


class _Remote:
    """Stores on any file system that fsspec knows."""

    def open_reader(self, uri: str) -> TrajectoryReader:
        return RemoteStore.open(uri)

    def open_writer(self, uri: str, **words: Any) -> TrajectoryWriter:
        return RemoteWriter(uri, **words)


def _path(uri: str) -> str:
    return uri.rpartition("://")[2]
