"""Writing a feature cache from token samples: shard by shard, resumable, on several ranks."""

from __future__ import annotations

import dataclasses
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specforge_dstill.data import jsonl
from specforge_dstill.data.capture_transformers import Features
from specforge_dstill.data.chat import RewrittenAnswersError, TokenSample
from specforge_dstill.data.manifest import SAMPLES, CacheManifest
from specforge_dstill.data.settings import claim_settings, differences
from specforge_dstill.errors import UserError
from specforge_dstill.files import make_folder, remove_quietly, temporary_files, write_atomically
from specforge_dstill.token_hash import token_hash

Extract = Callable[[Sequence[TokenSample]], list[Features]]

IDENTITY = "capture.json"
#: Reasons for leaving a conversation out.
NO_PAIR = "no two neighbouring scored tokens"
NOT_FINITE = "features that are not finite"
REWRITTEN = "answers rewritten by the chat template"
_NAMED_IDS = 20


@dataclass(frozen=True)
class Share:
    """This process's part: every ``world``-th shard from ``rank``; others may only compute.

    ``writes`` is False for the tensor-parallel helpers of a rank that writes.
    """

    rank: int = 0
    world: int = 1
    writes: bool = True


def sample_file(index: int, shard_size: int) -> str:
    """The sample id of the ``index``-th conversation: its file, relative to the cache."""
    return f"data/{index // shard_size:05d}/{index:08d}.ckpt"


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
    _claim(folder, manifest)
    size = manifest.shard_size
    shards = range((len(samples) + size - 1) // size)
    for shard in shards[share.rank :: share.world]:
        indices = range(shard * size, min(len(samples), (shard + 1) * size))
        if not _complete(folder, shard, indices):
            writer = _ShardWriter(folder, layout, manifest, share.writes)
            rows = writer.capture({i: _get(samples, i) for i in indices}, extract, batch_tokens)
            if share.writes:
                make_folder(_marker(folder, shard).parent)
                jsonl.write_objects(_marker(folder, shard), rows)
        update(len(indices))
    return _finish(folder, manifest, shards) if share.writes else None


def batches_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Groups of indices, longest first, whose padded size stays within ``budget`` tokens."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batch: list[int] = []
    for index in order:
        if batch and lengths[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@dataclass(frozen=True)
class _ShardWriter:
    folder: Path
    layout: Any
    manifest: CacheManifest
    writes: bool

    def capture(
        self, samples: dict[int, TokenSample | str], extract: Extract, batch_tokens: int
    ) -> list[dict[str, Any]]:
        """Write the shard's missing files; one row for every sample, in order.

        Batches are those of the whole shard, so that a file's last digits do not depend on
        what was there before; a batch that is all there is skipped.
        """
        rows: dict[int, dict[str, Any]] = {}
        usable: list[tuple[int, TokenSample]] = []
        for index, sample in samples.items():
            if isinstance(sample, str):
                rows[index] = {"id": sample, "dropped": REWRITTEN}
            elif not sample.usable():
                rows[index] = {"id": sample.id, "dropped": NO_PAIR}
            else:
                usable.append((index, sample))
                if self._path(index).is_file():
                    rows[index] = self._row(index, sample)
        if self.writes and usable:
            home = self._path(usable[0][0]).parent
            make_folder(home)
            for leftover in temporary_files(home):
                remove_quietly(leftover)
        for batch in batches_by_length([len(sample) for _, sample in usable], batch_tokens):
            chosen = [usable[i] for i in batch]
            if all(index in rows for index, _ in chosen):
                continue
            features = extract([sample for _, sample in chosen])
            for (index, sample), found in zip(chosen, features, strict=True):
                if index not in rows:
                    rows[index] = self._store(index, sample, found)
        return [rows[index] for index in samples]

    def _path(self, index: int) -> Path:
        return self.folder / sample_file(index, self.manifest.shard_size)

    def _row(self, index: int, sample: TokenSample) -> dict[str, Any]:
        return {
            "sample_id": sample_file(index, self.manifest.shard_size),
            "id": sample.id,
            "length": len(sample),
            "token_hash": token_hash(sample.input_ids),
        }

    def _store(self, index: int, sample: TokenSample, found: Features) -> dict[str, Any]:
        dtype = getattr(torch, self.manifest.dtype)
        states = {"aux_hidden_states": found.hidden_states.to(dtype)}
        if found.last is not None:
            states["last_hidden_states"] = found.last.to(dtype)
        if not all(bool(torch.isfinite(tensor).all()) for tensor in states.values()):
            return {"id": sample.id, "dropped": NOT_FINITE}
        ids = {"input_ids": sample.input_ids.long(), "loss_mask": sample.loss_mask.long()}
        if self.writes:
            _save(self.layout.materialize({**ids, **states}), self._path(index))
        return self._row(index, sample)


def _get(samples: Sequence[TokenSample], index: int) -> TokenSample | str:
    """The sample, or the id of a conversation whose answers the template rewrites."""
    try:
        return samples[index]
    except RewrittenAnswersError as error:
        return error.conversation


def _save(record: dict[str, torch.Tensor], path: Path) -> None:
    buffer = io.BytesIO()  # so that a full disk is an OSError of ours, not torch's
    torch.save({name: tensor.contiguous().clone() for name, tensor in record.items()}, buffer)
    write_atomically(path, buffer.getbuffer())


def _claim(folder: Path, manifest: CacheManifest) -> None:
    """Record what this folder's features are, or refuse one that holds others."""
    path, identity = folder / IDENTITY, manifest.identity()
    if not path.exists():
        if any(folder.glob("**/*.ckpt")):
            raise UserError(
                f"{folder}: holds features that this command did not make; choose another --output"
            )
        make_folder(folder)
    changed = differences(claim_settings(path, identity), identity)
    if changed:
        raise UserError(
            f"{folder}: holds features made with other settings ({changed}); "
            "choose another --output"
        )


def _marker(folder: Path, shard: int) -> Path:
    return folder / "shards" / f"{shard:05d}.jsonl"


def _complete(folder: Path, shard: int, indices: range) -> bool:
    """Whether the shard's marker is there and so is every file it lists."""
    marker = _marker(folder, shard)
    if not marker.is_file():
        return False
    rows = [row for _, row in jsonl.read_objects(marker)]
    files = [folder / row["sample_id"] for row in rows if "sample_id" in row]
    return len(rows) == len(indices) and all(file.is_file() for file in files)


def _finish(folder: Path, manifest: CacheManifest, shards: range) -> CacheManifest | None:
    """Write samples.jsonl and manifest.json if no shard is missing (any rank may)."""
    markers = [_marker(folder, shard) for shard in shards]
    if not all(marker.is_file() for marker in markers):
        return None
    rows = [row for marker in markers for _, row in jsonl.read_objects(marker)]
    written = [row for row in rows if "sample_id" in row]
    reasons = [(row["dropped"], row["id"]) for row in rows if "dropped" in row]
    dropped = dict(sorted(Counter(reason for reason, _ in reasons).items()))
    if not written:
        why = "; ".join(f"{count} with {reason}" for reason, count in dropped.items())
        raise UserError(f"{folder}: no conversation gave a usable sample: {why or 'none given'}")
    ids = {reason: [i for r, i in reasons if r == reason][:_NAMED_IDS] for reason in dropped}
    done = dataclasses.replace(manifest, samples=len(written), dropped=dropped, dropped_ids=ids)
    jsonl.write_objects(folder / SAMPLES, written)
    done.write(folder)
    return done
