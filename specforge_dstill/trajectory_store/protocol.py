"""What the rest of the package asks of a trajectory store, wherever its records lie.

A class of another package that offers these is as good as ours; see
:mod:`specforge_dstill.trajectory_store.backends`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from specforge_dstill.errors import UserError
from specforge_dstill.token_hash import token_hash
from specforge_dstill.trajectory_store.identity import StoreIdentity, StorePlan
from specforge_dstill.trajectory_store.manifest import Manifest
from specforge_dstill.trajectory_store.matching import require_expected
from specforge_dstill.trajectory_store.record import SampleRecord


class TrajectoryReader(Protocol):
    """A complete store: a mapping from sample id to :class:`SampleRecord`.

    A class that inherits from this one brings the attributes, ``__contains__`` and
    ``__getitem__``; the rest follows from them.

    Attributes:
        uri: where it is, as messages name it.
        manifest: its shards, blocks, bytes, and what made it.
        sample_ids: of all its samples, in order.
    """

    uri: str
    manifest: Manifest
    sample_ids: Sequence[str]

    def __contains__(self, sample_id: object) -> bool: ...

    def __getitem__(self, sample_id: str) -> SampleRecord:
        """The record of one sample, in memory of its own. Safe to call from several threads.

        Raises: ``UserError`` naming the sample and the store when it is not there.
        """
        ...

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sample_ids)

    @property
    def identity(self) -> StoreIdentity:
        """The settings that made the store."""
        return self.manifest.plan.identity

    @property
    def digest(self) -> str:
        """SHA-256 of those settings, the samples and their division into shards."""
        return self.manifest.plan.digest

    def record_for(self, sample_id: str, input_ids: Any) -> SampleRecord:
        """The record of a sample whose tokens are ``input_ids`` [S] (list, array or CPU tensor).

        Raises: ``UserError`` when it is not there, or was collected from other tokens.
        """
        record = self[sample_id]
        if record.token_hash != token_hash(input_ids):
            raise UserError(
                f"sample {sample_id} has other tokens now than when trajectory store "
                f"{self.uri} was collected (it had {record.length}); the feature cache has "
                "changed: collect again into another folder"
            )
        return record

    def check(self, **expected: Any) -> None:
        """Refuse this store unless it was made with the given settings.

        ``store.check(block_size=16, vocab_size=…, mask_token_id=…, teacher_hash=…)``; names are
        the fields of :class:`StoreIdentity`, and prediction_shift, samples, samples_hash,
        shard_size, logp_dtype.

        Raises: ``UserError`` naming each setting that differs, with both values.
        """
        require_expected(self.uri, self.manifest.plan, expected)


class TrajectoryWriter(Protocol):
    """A store in the making, by any number of processes, in any order, in any number of runs.

    Every process makes its own writer with the same arguments, writes the shards that
    :meth:`missing` gives it, and one of them calls :meth:`finish` when all are done.
    """

    @property
    def uri(self) -> str:
        """Where the store is, as messages name it."""
        ...

    @property
    def plan(self) -> StorePlan:
        """The store's settings and its division into shards."""
        ...

    def missing(self, ranks: int = 1, rank: int = 0) -> list[int]:
        """This rank's share of the shards that are absent or not whole.

        The shares of all ranks are disjoint and complete only if every rank asks before any rank
        writes.

        Raises: ``UserError`` for a whole shard that was made with other settings.
        """
        ...

    def samples_of(self, index: int) -> Sequence[str]:
        """The ids of the samples of shard ``index``, in order."""
        ...

    def write_shard(self, index: int, records: Iterable[SampleRecord]) -> Path | str:
        """Write one shard; ``records`` are its samples in order, and may be a generator.

        Returns where it now is, whole: a path on this machine, or a URI elsewhere.

        Raises: ``UserError`` when it cannot be written or a log-probability is NaN;
        ``ValueError`` for records that do not fit. No piece of a shard counts as one then.
        """
        ...

    def finish(self) -> Manifest:
        """Complete the store; for one process, when no other is writing, and repeatable.

        Raises: ``UserError`` when shards are missing or the manifest cannot be written.
        """
        ...
