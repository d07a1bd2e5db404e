"""One shard, memory-mapped: its structure checked, its rows read as slices."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from specforge_dstill.errors import reason
from specforge_dstill.maths.trajectory import Trajectory
from specforge_dstill.trajectory_store.format import BLOCK_COLUMNS, ShardFormat
from specforge_dstill.trajectory_store.identity import StorePlan
from specforge_dstill.trajectory_store.record import SampleRecord
from specforge_dstill.trajectory_store.sharding import shard_name

Values = np.ndarray[Any, Any]


class ShardError(Exception):
    """A file that is not a whole shard of its store; the message says why."""


class ForeignShardError(ShardError):
    """A whole shard, but one that was made with other settings."""


@dataclass(frozen=True)
class _Rows:
    """One Arrow batch: where each row's blocks start, and views of the file."""

    starts: list[int]  # [rows + 1], in blocks
    values: dict[str, Values]
    batch: pa.RecordBatch

    @classmethod
    def of(cls, batch: pa.RecordBatch, form: ShardFormat) -> _Rows:
        # Checks every offset and string, not the numbers: cheap, and slices can be trusted after.
        batch.validate(full=True)
        if any(column.null_count for column in batch.columns):
            raise ValueError("it has empty cells")
        starts = batch.column("anchors").offsets.to_numpy()
        values = {}
        for name in BLOCK_COLUMNS:
            column = batch.column(name)
            if not np.array_equal(
                column.offsets.to_numpy(), starts.astype(np.int64) * form.values_per_block[name]
            ):
                raise ValueError(f"its column {name} does not fit its anchors")
            values[name] = column.values.to_numpy(zero_copy_only=True)
        return cls(starts=starts.tolist(), values=values, batch=batch)


class Shard:
    """A shard of a trajectory store, readable alone.

    Attributes:
        form: what the shard says about itself.
        sample_ids: of its rows, in order.
        blocks: how many it holds in all.
    """

    def __init__(self, path: Path) -> None:
        """Map ``path`` and check its structure. Raises: ``ShardError``; never anything else."""
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
            self.form = ShardFormat.from_schema(reader.schema)
            self._batches = [
                _Rows.of(reader.get_batch(i), self.form) for i in range(reader.num_record_batches)
            ]
            ids = [rows.batch["sample_id"].to_pylist() for rows in self._batches]
            self.sample_ids: list[str] = list(chain.from_iterable(ids))
        except FileNotFoundError as error:
            raise ShardError("it is missing") from error
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
            raise ShardError(f"it is truncated or damaged ({reason(error)})") from error
        self._widths = self.form.values_per_block
        self._first_row = [0]
        for rows in self._batches:
            self._first_row.append(self._first_row[-1] + rows.batch.num_rows)
        self.blocks = sum(rows.starts[-1] for rows in self._batches)

    def record(self, row: int) -> SampleRecord:
        """The record in row ``row`` (from 0), copied out of the map once."""
        at = bisect_right(self._first_row, row) - 1
        rows, row = self._batches[at], row - self._first_row[at]
        start, stop = rows.starts[row], rows.starts[row + 1]
        blocks, size = stop - start, self.form.block_size
        top = (blocks, self.form.passes, size - 1, self.form.top_k)

        def read(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            width = self._widths[name]
            piece = rows.values[name][start * width : stop * width]
            return _owned(piece, dtype).view(shape)

        return SampleRecord(
            sample_id=rows.batch["sample_id"][row].as_py(),
            token_hash=rows.batch["token_hash"][row].as_py(),
            length=rows.batch["length"][row].as_py(),
            anchors=read("anchors", (blocks,), torch.int64),
            trajectory=Trajectory(
                endpoint=read("endpoint", (blocks, size), torch.int64),
                commit_pass=read("commit_pass", (blocks, size), torch.int64),
                top_ids=read("top_ids", top, torch.int64),
                top_logp=read("top_logp", top, torch.float32),
            ),
        )


def _owned(piece: Values, dtype: torch.dtype) -> Tensor:
    """A tensor of its own memory from a read-only view."""
    return torch.from_numpy(piece.copy()).to(dtype)  # torch's float16 is ten times NumPy's speed


def open_shard(folder: Path, plan: StorePlan, index: int) -> Shard:
    """Map shard ``index`` of the store in ``folder``; check its structure and its number of rows.

    Raises: ``ShardError``; ``ForeignShardError`` when ``plan`` did not make it.
    """
    shard = Shard(folder / shard_name(index, plan.shards))
    expected = ShardFormat.of(plan, index)
    if replace(shard.form, versions=expected.versions) != expected:
        raise ForeignShardError("it was made with other settings")
    rows = min(plan.shard_size, plan.samples - index * plan.shard_size)
    if len(shard.sample_ids) != rows:
        raise ShardError(f"it holds {len(shard.sample_ids)} samples, not {rows}")
    return shard
