"""A shard's Arrow schema, and records as Arrow batches.

One row per sample; the numbers of all its blocks are flat lists, so that a row is a slice of the
file. Per block of B positions with T recorded passes and k retained ids:

    anchors      1             int32
    endpoint     B             int32
    commit_pass  B             int8
    top_ids      T * (B-1) * k int32, -1 in unused slots
    top_logp     T * (B-1) * k float16 or float32, -inf in unused slots
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from specforge_dstill.trajectory_store.identity import FORMAT, FORMAT_VERSION, StorePlan
from specforge_dstill.trajectory_store.record import SampleRecord, check_record

_METADATA_KEY = b"specforge_dstill"
# Rows are grouped into Arrow batches of about this many bytes, which bounds a writer's memory.
_BATCH_BYTES = 32 << 20
_MAX_LIST_VALUES = np.iinfo(np.int32).max

_TORCH_TYPES = {
    pa.int8(): torch.int8,
    pa.int32(): torch.int32,
    pa.float16(): torch.float16,
    pa.float32(): torch.float32,
}

BLOCK_COLUMNS = ("anchors", "endpoint", "commit_pass", "top_ids", "top_logp")


@dataclass(frozen=True)
class ShardFormat:
    """What a shard says about itself, enough to read it alone.

    ``plan_digest`` is :attr:`StorePlan.digest`; ``shard`` of ``shards``, from 0.
    """

    block_size: int
    steps: int
    passes: int
    top_k: int
    record: str
    mask_token_id: int
    vocab_size: int
    logp_dtype: str
    shard: int
    shards: int
    plan_digest: str
    versions: dict[str, str]

    @classmethod
    def of(cls, plan: StorePlan, shard: int) -> ShardFormat:
        """The format of shard ``shard`` of a store made by ``plan``."""
        identity = plan.identity
        return cls(
            block_size=identity.block_size,
            steps=identity.steps,
            passes=identity.passes,
            top_k=identity.top_k,
            record=identity.record,
            mask_token_id=identity.mask_token_id,
            vocab_size=identity.vocab_size,
            logp_dtype=plan.logp_dtype,
            shard=shard,
            shards=plan.shards,
            plan_digest=plan.digest,
            versions=dict(identity.versions),
        )

    @property
    def values_per_block(self) -> dict[str, int]:
        """Length of each list column for one block."""
        top = self.passes * (self.block_size - 1) * self.top_k
        return dict(
            zip(BLOCK_COLUMNS, (1, self.block_size, self.block_size, top, top), strict=True)
        )

    @property
    def value_types(self) -> dict[str, pa.DataType]:
        """Element type of each list column."""
        return _value_types(self.logp_dtype)

    @property
    def schema(self) -> pa.Schema:
        """The shard's Arrow schema, with this description in its metadata."""
        about = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        metadata = {_METADATA_KEY: json.dumps(about, sort_keys=True)}
        return _columns(self.logp_dtype).with_metadata(metadata)

    @classmethod
    def from_schema(cls, schema: pa.Schema) -> ShardFormat:
        """The description in a shard's schema. Raises: ``ValueError`` when it is not ours."""
        about = json.loads((schema.metadata or {}).get(_METADATA_KEY, b"{}"))
        if about.get("format") != FORMAT or about.get("format_version") != FORMAT_VERSION:
            raise ValueError("it is not a shard of a trajectory store of this version")
        try:
            found = cls(**{field.name: about[field.name] for field in fields(cls)})
        except KeyError as error:
            raise ValueError(f"its description lacks {error}") from error
        if not schema.equals(_columns(found.logp_dtype)):
            raise ValueError("its columns are not those of a trajectory store")
        return found


def _value_types(logp_dtype: str) -> dict[str, pa.DataType]:
    logp = pa.float16() if logp_dtype == "float16" else pa.float32()
    types = (pa.int32(), pa.int32(), pa.int8(), pa.int32(), logp)
    return dict(zip(BLOCK_COLUMNS, types, strict=True))


@lru_cache
def _columns(logp_dtype: str) -> pa.Schema:
    """A shard's columns; kept, since opening a store compares every shard with them."""
    columns = [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("token_hash", pa.string(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
    ]
    columns += [
        pa.field(name, pa.list_(pa.field("item", of, nullable=False)), nullable=False)
        for name, of in _value_types(logp_dtype).items()
    ]
    return pa.schema(columns)


def batches(
    records: Iterable[SampleRecord], form: ShardFormat, plan: StorePlan
) -> Iterator[pa.RecordBatch]:
    """Check ``records`` and turn them, in order, into Arrow batches of bounded size.

    Raises: as :func:`check_record`; ``ValueError`` for a sample too large for a row.
    """
    per_block = sum(
        form.values_per_block[name] * form.value_types[name].bit_width // 8
        for name in BLOCK_COLUMNS
    )
    widest = max(form.values_per_block.values())
    group: list[SampleRecord] = []
    size = 0
    for record in records:
        check_record(record, plan.identity)
        if len(record.anchors) * widest > _MAX_LIST_VALUES:
            raise ValueError(f"sample {record.sample_id} has too many blocks for one row")
        added = len(record.anchors) * per_block
        if group and size + added > _BATCH_BYTES:
            yield _batch(group, form)
            group, size = [], 0
        group.append(record)
        size += added
    if group:
        yield _batch(group, form)


def _batch(records: Sequence[SampleRecord], form: ShardFormat) -> pa.RecordBatch:
    blocks = np.array([len(record.anchors) for record in records], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(blocks)])
    columns: list[pa.Array] = [
        pa.array([record.sample_id for record in records], pa.string()),
        pa.array([record.token_hash for record in records], pa.string()),
        pa.array([record.length for record in records], pa.int32()),
    ]
    for name, of in form.value_types.items():
        values = torch.cat([_flat(name, record, _TORCH_TYPES[of]) for record in records]).numpy()
        offsets = (starts * form.values_per_block[name]).astype(np.int32)
        columns.append(
            pa.ListArray.from_arrays(
                pa.array(offsets), pa.array(values, of), type=form.schema.field(name).type
            )
        )
    return pa.RecordBatch.from_arrays(columns, schema=form.schema)


def _flat(name: str, record: SampleRecord, dtype: torch.dtype) -> Tensor:
    """One list column of one record, as it lies in the file."""
    source = record if name == "anchors" else record.trajectory
    values: Tensor = getattr(source, name).detach().cpu().reshape(-1)
    if name == "top_logp":
        # Rounding would bring what lies just under the smallest float16 back up to it.
        values = values.masked_fill(values < torch.finfo(dtype).min, -torch.inf)
    return values.to(dtype)
