"""What a feature cache and a trajectory store will take: arithmetic, nothing is loaded.

Shapes: S tokens of a sample, L target layers, H the target's hidden size, B block size, k retained
ids.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import torch

from specforge_dstill.trajectory_store.format import BLOCK_COLUMNS, ShardFormat
from specforge_dstill.trajectory_store.sharding import shard_count

#: Bytes of one stored value, by the names that ``--dtype`` takes.
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1}
SHORT_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
#: float32, one a token and layer.
_SCALE_BYTES = 4
#: input_ids and loss_mask, int64 both.
_IDS_BYTES = 16
_SAMPLE_ID = "data/00000/00000017.ckpt"
_HASH_DIGITS = 32
#: Arrow's offsets of strings and lists, int32.
_OFFSET_BYTES = 4


@dataclass(frozen=True)
class Counts:
    """The samples of a run.

    Attributes:
        samples, tokens: of all samples that a cache will hold.
        blocks: of all their trajectories.
        scored, anchors: scored tokens and valid anchors; None where no text was tokenized.
        left_out: conversations that capture will leave out.
        source: where the counts come from, in words.
    """

    samples: int
    tokens: int
    blocks: int
    source: str
    scored: int | None = None
    anchors: int | None = None
    left_out: int = 0

    def scaled(self, conversations: int, looked_at: int) -> Counts:
        """The counts of ``conversations``, estimated from those of ``looked_at`` of them."""

        def up(count: int) -> int:
            return round(count * conversations / looked_at)

        return replace(
            self,
            samples=up(self.samples),
            tokens=up(self.tokens),
            blocks=up(self.blocks),
            scored=None if self.scored is None else up(self.scored),
            anchors=None if self.anchors is None else up(self.anchors),
            left_out=up(self.left_out),
        )


@dataclass(frozen=True)
class CacheCost:
    """A feature cache of ``samples`` files: [S, L * H] states, ids and mask in each.

    ``dtype`` is a key of :data:`DTYPE_BYTES`; ``with_last``: the target's last states, [S, H], lie
    there, too (of a DSpark drafter).
    """

    layers: int
    hidden: int
    dtype: str
    samples: int
    tokens: int
    with_last: bool = False

    @property
    def bytes_per_token(self) -> int:
        states = (self.layers + self.with_last) * self.hidden * DTYPE_BYTES[self.dtype]
        return states + self._scales + _IDS_BYTES

    @property
    def _scales(self) -> int:
        return self.layers * _SCALE_BYTES if self.dtype == "fp8" else 0

    @cached_property
    def bytes_per_file(self) -> int:
        """What a file takes beside its tensors' values: names, shapes, checksums, padding."""
        names = ["input_ids", "loss_mask", "hidden_states"]
        if self.dtype == "fp8":
            names.append("hidden_states_scale")
        if self.with_last:
            names.append("target_last_hidden_states")
        buffer = io.BytesIO()
        torch.save({name: torch.empty(0) for name in names}, buffer)
        return buffer.getbuffer().nbytes

    @property
    def total(self) -> int:
        """Bytes of all feature files. The cache's index, some 0.5 kB a sample, is left out."""
        return self.tokens * self.bytes_per_token + self.samples * self.bytes_per_file

    @property
    def per_token_text(self) -> str:
        """The arithmetic of a token's bytes."""
        size = DTYPE_BYTES[self.dtype]
        parts = [f"{self.layers} layers x {self.hidden:,} x {size} B"]
        if self.with_last:
            parts.append(f"{self.hidden:,} x {size} B (last states)")
        if self._scales:
            parts.append(f"{self.layers} scales x {_SCALE_BYTES} B")
        return " + ".join([*parts, f"{_IDS_BYTES} B (id and mask)"])


@dataclass(frozen=True)
class StoreCost:
    """A trajectory store of ``blocks`` blocks; the numbers are the format's own."""

    form: ShardFormat
    samples: int
    blocks: int
    shard_size: int

    @classmethod
    def of(
        cls,
        *,
        block_size: int,
        steps: int,
        top_k: int,
        record: str,
        logp_dtype: str,
        samples: int,
        blocks: int,
        shard_size: int,
    ) -> StoreCost:
        """Of these settings; those that take no room are left open."""
        form = ShardFormat(
            block_size=block_size,
            steps=steps,
            passes=steps if record == "full" else 1,
            top_k=top_k,
            record=record,
            mask_token_id=0,
            vocab_size=1,
            logp_dtype=logp_dtype,
            shard=0,
            shards=max(1, shard_count(samples, shard_size)),
            plan_digest="0" * 64,
            versions={},
        )
        return cls(form, samples, blocks, shard_size)

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """(values, bytes a value) of one block, by column."""
        return {
            name: (self.form.values_per_block[name], self.form.value_types[name].bit_width // 8)
            for name in BLOCK_COLUMNS
        }

    @property
    def bytes_per_block(self) -> int:
        return sum(values * size for values, size in self.columns.values())

    @property
    def bytes_per_row(self) -> int:
        """What a sample takes beside its blocks: its names, its length, Arrow's offsets."""
        variable = len(BLOCK_COLUMNS) + 2  # lists, and two strings
        return len(_SAMPLE_ID) + _HASH_DIGITS + 4 + variable * _OFFSET_BYTES

    @cached_property
    def bytes_per_shard(self) -> int:
        """What a shard takes beside its rows: schema, description, footer."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, self.form.schema) as file:
            file.write_batch(pa.RecordBatch.from_pylist([], schema=self.form.schema))
        return sink.getvalue().size

    @property
    def shards(self) -> int:
        return shard_count(self.samples, self.shard_size)

    @property
    def total(self) -> int:
        return (
            self.blocks * self.bytes_per_block
            + self.samples * self.bytes_per_row
            + self.shards * self.bytes_per_shard
        )

    def recording(self, record: str) -> StoreCost:
        """The same store with the other ``dstill.collect.record``."""
        passes = self.form.steps if record == "full" else 1
        return replace(self, form=replace(self.form, record=record, passes=passes))

    @property
    def per_block_text(self) -> str:
        """The arithmetic of a block's bytes."""
        return " + ".join(
            f"{values} x {size} ({name})" for name, (values, size) in self.columns.items()
        )
