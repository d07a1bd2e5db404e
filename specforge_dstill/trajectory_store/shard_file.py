"""One shard's file: written whole or not at all, with its checksum beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from specforge_dstill.files import (
    reading,
    remove_quietly,
    sync_folder,
    temporary_path,
    write_atomically,
    writing,
)
from specforge_dstill.trajectory_store.checksums import HashingFile
from specforge_dstill.trajectory_store.format import ShardFormat, batches
from specforge_dstill.trajectory_store.identity import StorePlan
from specforge_dstill.trajectory_store.record import SampleRecord
from specforge_dstill.trajectory_store.sharding import shard_name

CHECKSUM_SUFFIX = ".sha256"


def write_shard_file(
    folder: Path,
    plan: StorePlan,
    index: int,
    sample_ids: Sequence[str],
    records: Iterable[SampleRecord],
) -> Path:
    """Write shard ``index`` of ``plan`` into ``folder``; ``records`` may be a generator.

    The checksum in the small file beside it is that of the bytes as they were written.

    Args:
        sample_ids: the samples that ``records`` must be of, in order.

    Returns the shard's path.

    Raises: ``UserError`` when the file system refuses or a log-probability is NaN; ``ValueError``
    for records that do not fit. Nothing is left behind then.
    """
    path = folder / shard_name(index, plan.shards)
    form = ShardFormat.of(plan, index)
    written: list[str] = []
    temporary = temporary_path(path)
    try:
        with writing(path):
            file = HashingFile(temporary)
        try:
            sink = pa.ipc.new_file(file, form.schema)
            for batch in batches(records, form, plan):
                written += batch["sample_id"].to_pylist()
                with writing(path):
                    sink.write_batch(batch)
            if written != list(sample_ids):
                raise ValueError(f"these are not the samples of shard {index}, in order")
            with writing(path):
                sink.close()
                file.sync()
        finally:
            with contextlib.suppress(OSError):  # bytes that could not be written: raised above
                file.close()
        write_atomically(checksum_path(path), file.sha256.encode())
        with writing(path):
            temporary.replace(path)
    finally:
        remove_quietly(temporary)
    sync_folder(folder)
    return path


def checksum_path(shard: Path) -> Path:
    """Where a shard's checksum lies until the manifest holds it."""
    return shard.with_name(shard.name + CHECKSUM_SUFFIX)


def written_checksum(shard: Path) -> str | None:
    """What :func:`write_shard_file` left beside ``shard``; None when that is gone."""
    with reading(shard):
        try:
            return checksum_path(shard).read_text()
        except FileNotFoundError:
            return None
