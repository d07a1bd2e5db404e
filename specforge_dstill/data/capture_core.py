"""Writing a feature cache from token samples: shard by shard, resumable, on several ranks.

Which files there are, what is in them and which rank writes them are pure functions of the list
of samples, the shard size and the number of ranks. A file gets a temporary name, is flushed, then
renamed; when all of a shard's files are there its marker enters them with their checksums. A
second run does what is not entered. What it finds there:

- a file that a marker enters, with the size it had: kept (contents are ``verify``'s business);
- a file that no marker enters, left by a killed run: entered if it is whole, which can be told
  (:meth:`RecordFormat.whole`), else set aside and captured again;
- a file that is gone or has another size, a marker that is damaged: taken back, set aside, done
  again.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specforge_dstill.data import jsonl
from specforge_dstill.data.capture_shard import Extract, ShardWriter
from specforge_dstill.data.chat import TokenSample
from specforge_dstill.data.feature_record import RecordFormat
from specforge_dstill.data.left_out import LeftOutError
from specforge_dstill.data.manifest import SAMPLES, CacheManifest
from specforge_dstill.data.markers import Marker, MarkerError, Row, claim, marker_name, read_marker
from specforge_dstill.errors import UserError
from specforge_dstill.files import remove_quietly, temporary_files, write_atomically
from specforge_dstill.trajectory_store.sharding import partition, shard_count, shard_samples

_NAMED_IDS = 20


@dataclass(frozen=True)
class Share:
    """This process's part: every ``world``-th shard from ``rank``; others may only compute.

    ``writes`` is False for the tensor-parallel helpers of a rank that writes.
    """

    rank: int = 0
    world: int = 1
    writes: bool = True

    def shards(self, samples: int, shard_size: int) -> Sequence[int]:
        """The shards of this part."""
        return partition(range(shard_count(samples, shard_size)), self.world, self.rank)


def capture_samples(
    samples: Sequence[TokenSample],
    extract: Extract,
    *,
    layout: Any,
    folder: Path,
    manifest: CacheManifest,
    batch_tokens: int = 8192,
    share: Share | None = None,
    update: Callable[[int], None] = lambda count: None,
) -> CacheManifest | None:
    """Write what is missing of the cache of ``samples`` and, once all is there, its manifest.

    ``samples`` may tokenize as it is indexed: a shard at a time is held. ``layout`` is
    SpecForge's OfflineCaptureLayout, ``manifest`` what identifies the capture (its results are
    filled in here). File names and shards depend on the samples' places only, so any number of
    ranks, restarts and orders give the same cache. ``update`` is told of every sample done.

    Returns the finished manifest, None when other ranks' shards are still missing. UserError
    on a folder with other features, a disk that cannot be written, or no sample that fits.
    """
    share = share or Share()
    writer = ShardWriter(
        folder=folder,
        capture=claim(folder, manifest.identity()),
        form=RecordFormat(
            layout=layout,
            layers=len(manifest.target_layer_ids),
            width=manifest.width,
            keys=manifest.keys,
            dtype=getattr(torch, manifest.dtype),
        ),
        shard_size=manifest.shard_size,
        batch_tokens=batch_tokens,
        writes=share.writes,
    )
    size = manifest.shard_size
    for shard in share.shards(len(samples), size):
        indices = shard_samples(range(len(samples)), shard, size)
        if not writer.is_complete(shard, len(indices)):
            writer.capture_shard(shard, {i: _get(samples, i) for i in indices}, extract)
        update(len(indices))
    if not share.writes:
        return None
    done = _finish(folder, manifest, range(shard_count(len(samples), size)))
    if done is not None and share.world == 1:  # else other ranks may be writing there
        for leftover in temporary_files(folder):
            remove_quietly(leftover)
    return done


def _get(samples: Sequence[TokenSample], index: int) -> TokenSample | Row:
    """The sample, or the marker's row that tells why there is none."""
    try:
        return samples[index]
    except LeftOutError as error:
        return {"id": error.conversation, "dropped": error.why}


def _finish(folder: Path, manifest: CacheManifest, shards: range) -> CacheManifest | None:
    """Write samples.jsonl and manifest.json if no shard is missing (any rank may)."""
    if not all((folder / marker_name(shard)).is_file() for shard in shards):
        return None
    markers = [_complete_marker(folder, shard) for shard in shards]
    if any(marker is None for marker in markers):
        return None
    rows = [row for marker in markers if marker is not None for row in marker.rows]
    written = [row for row in rows if "sample_id" in row]
    reasons = [(row["dropped"], row["id"]) for row in rows if "dropped" in row]
    dropped = dict(sorted(Counter(reason for reason, _ in reasons).items()))
    if not written:
        why = "; ".join(f"{reason} ({count})" for reason, count in dropped.items())
        raise UserError(
            f"{folder}: no conversation gave a usable sample: {why or 'none given'}; samples are "
            f"cut at data.max_length, {manifest.max_length} tokens"
        )
    ids = {reason: [i for r, i in reasons if r == reason][:_NAMED_IDS] for reason in dropped}
    listed = jsonl.lines(written)
    done = dataclasses.replace(
        manifest,
        samples=len(written),
        tokens=sum(row["length"] for row in written),
        feature_bytes=sum(row["bytes"] for row in written),
        samples_sha256=hashlib.sha256(listed).hexdigest(),
        dropped=dropped,
        dropped_ids=ids,
    )
    held = _manifest(folder)
    if held is not None and held.is_of(done) and _holds(folder / SAMPLES, listed):
        return held  # a finished cache may lie where nothing can be written
    write_atomically(folder / SAMPLES, listed)
    done.write(folder)
    return done


def _manifest(folder: Path) -> CacheManifest | None:
    try:
        return CacheManifest.read(folder)
    except UserError:
        return None  # damaged; it is written again


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def _complete_marker(folder: Path, shard: int) -> Marker | None:
    try:
        marker = read_marker(folder, shard)
    except MarkerError:
        return None
    return marker if marker is not None and marker.complete else None
