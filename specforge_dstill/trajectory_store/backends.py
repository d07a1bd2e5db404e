"""Which class reads or writes a store, chosen by its URI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from specforge_dstill.trajectory_store.identity import StoreIdentity, StorePlan
from specforge_dstill.trajectory_store.manifest import Manifest
from specforge_dstill.trajectory_store.protocol import TrajectoryReader, TrajectoryWriter
from specforge_dstill.trajectory_store.reader import TrajectoryStore
from specforge_dstill.trajectory_store.record import SampleRecord
from specforge_dstill.trajectory_store.writer import StoreWriter


class OnShard(Protocol):
    """Called with each finished shard, after it is in place.

    ``uri`` names the shard, ``index`` counts from 0, ``path`` is its file where that is on this
    machine, else None.
    """

    def __call__(self, *, uri: str, index: int, path: Path | None) -> object: ...


def open_store(uri: str) -> TrajectoryReader:
    """Open a complete store for reading.

    Errors: ``UserError`` when there is none, or it is not complete or damaged.
    """
    return TrajectoryStore.open(_folder(uri))


def open_writer(
    uri: str,
    *,
    identity: StoreIdentity,
    sample_ids: Sequence[str],
    shard_size: int,
    logp_dtype: str,
    on_shard: OnShard | None = None,
) -> TrajectoryWriter:
    """Begin a store, or go on with one.

    Args:
        uri: where it is to be.
        identity: the settings of this run.
        sample_ids: every sample of the store, in order, each once.
        shard_size: samples a shard.
        logp_dtype: "float16" or "float32" on disk.
        on_shard: called by the process that wrote it, once for each shard.

    Errors: ``UserError`` when a store made with other settings is there, or none can be written.
    """
    writer = StoreWriter(
        _folder(uri),
        identity=identity,
        sample_ids=sample_ids,
        shard_size=shard_size,
        logp_dtype=logp_dtype,
    )
    return writer if on_shard is None else _Telling(writer, on_shard)


@dataclass(frozen=True)
class _Telling:
    """A writer that calls ``on_shard`` after each shard."""

    writer: TrajectoryWriter
    on_shard: OnShard

    @property
    def uri(self) -> str:
        return self.writer.uri

    @property
    def plan(self) -> StorePlan:
        return self.writer.plan

    def missing(self, ranks: int = 1, rank: int = 0) -> list[int]:
        return self.writer.missing(ranks, rank)

    def samples_of(self, index: int) -> Sequence[str]:
        return self.writer.samples_of(index)

    def write_shard(self, index: int, records: Iterable[SampleRecord]) -> Path | str:
        place = self.writer.write_shard(index, records)
        if isinstance(place, Path):
            self.on_shard(uri=place.absolute().as_uri(), index=index, path=place)
        else:
            self.on_shard(uri=place, index=index, path=None)
        return place

    def finish(self) -> Manifest:
        return self.writer.finish()


def _folder(uri: str) -> str:
    return uri.removeprefix("file://")
