"""Capturing one shard: what is there is kept, what is missing is made, all of it is entered."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specforge_dstill.console import say
from specforge_dstill.damage import set_aside, size_problem
from specforge_dstill.data.batches import batches_by_length
from specforge_dstill.data.capture_transformers import Features
from specforge_dstill.data.chat import TokenSample
from specforge_dstill.data.feature_record import RecordFormat, record_bytes
from specforge_dstill.data.markers import (
    Marker,
    MarkerError,
    Row,
    marker_name,
    read_marker,
    write_marker,
)
from specforge_dstill.files import make_folder, remove_quietly, temporary_files, write_atomically
from specforge_dstill.token_hash import token_hash

Extract = Callable[[Sequence[TokenSample]], list[Features]]

#: Reasons for leaving a conversation out.
NO_PAIR = "no two neighbouring scored tokens"
NOT_FINITE = "features that are not finite"


def sample_file(index: int, shard_size: int) -> str:
    """The sample id of the ``index``-th conversation: its file, relative to the cache."""
    return f"data/{index // shard_size:05d}/{index:08d}.ckpt"


@dataclass(frozen=True)
class ShardWriter:
    """Writes the shards of one capture.

    ``capture`` is its identity's digest. With ``writes`` False the same batches run and nothing
    is written: a tensor-parallel helper must run what its writing rank runs.
    """

    folder: Path
    capture: str
    form: RecordFormat
    shard_size: int
    batch_tokens: int
    writes: bool

    def is_complete(self, shard: int, count: int) -> bool:
        """Whether the shard's marker enters all of it, and its files have the sizes it tells."""
        marker = self._marker(shard, count)
        return marker is not None and marker.complete and not self._changed(marker)

    def capture_shard(
        self, shard: int, samples: dict[int, TokenSample | Row], extract: Extract
    ) -> None:
        """Write the shard's missing files and enter all of them; a row is entered as it is.

        Batches are those of the whole shard, so that a file's last digits do not depend on
        what was there before; a batch that is all there is skipped.
        """
        rows = self._entered(shard, list(samples))
        usable: list[tuple[int, TokenSample]] = []
        for index, sample in samples.items():
            if not isinstance(sample, TokenSample):
                rows[index] = sample
            elif not sample.usable():
                rows[index] = {"id": sample.id, "dropped": NO_PAIR}
            else:
                usable.append((index, sample))
                if index not in rows:
                    self._adopt(index, sample, rows)
        self._tidy(usable)
        for batch in batches_by_length([len(sample) for _, sample in usable], self.batch_tokens):
            chosen = [usable[i] for i in batch]
            if all(index in rows for index, _ in chosen):
                continue
            features = extract([sample for _, sample in chosen])
            for (index, sample), found in zip(chosen, features, strict=True):
                if index not in rows:
                    rows[index] = self._store(index, sample, found)
        if self.writes:
            marker = Marker(self.capture, tuple(rows[index] for index in samples))
            write_marker(self.folder, shard, marker)

    def _marker(self, shard: int, count: int) -> Marker | None:
        """The shard's marker if it is whole and this capture's."""
        try:
            marker = read_marker(self.folder, shard)
        except MarkerError:
            return None
        fits = marker is not None and (marker.capture, len(marker.rows)) == (self.capture, count)
        return marker if fits else None

    def _changed(self, marker: Marker) -> dict[str, str]:
        """What is wrong with entered files, by sample id, as far as their sizes tell."""
        found = {}
        for row in marker.samples:
            problem = size_problem(self.folder / row["sample_id"], row["bytes"])
            if problem is not None:
                found[row["sample_id"]] = problem
        return found

    def _entered(self, shard: int, indices: Sequence[int]) -> dict[int, Row]:
        """The rows that stand, by index; the others are taken back before anything is redone.

        So that no other rank, done first, finishes a cache that lacks them.
        """
        marker = self._marker(shard, len(indices))
        if marker is None:
            self._set_aside(marker_name(shard))
            return {}
        changed = self._changed(marker)
        if changed and self.writes:
            marker = marker.without(changed)
            write_marker(self.folder, shard, marker)
        for sample_id in changed:
            self._set_aside(sample_id)
        pairs = zip(indices, marker.rows, strict=True)
        return {
            index: row
            for index, row in pairs
            if "damaged" not in row and row.get("sample_id") not in changed
        }

    def _adopt(self, index: int, sample: TokenSample, rows: dict[int, Row]) -> None:
        """Enter a file that a killed run left, if it is whole."""
        content = self.form.whole(self._path(index), sample)
        if content is not None:
            rows[index] = self._row(index, sample, content)
        else:
            self._set_aside(sample_file(index, self.shard_size))

    def _set_aside(self, piece: str) -> None:
        moved = set_aside(self.folder, piece) if self.writes else None
        if moved is not None:
            say(f"{self.folder / piece} is damaged: moved to {moved}, and made again")

    def _tidy(self, usable: Sequence[tuple[int, TokenSample]]) -> None:
        """Make the shard's folder; remove what killed writers left there."""
        if not self.writes or not usable:
            return
        home = self._path(usable[0][0]).parent
        make_folder(home)
        for leftover in temporary_files(home):
            remove_quietly(leftover)

    def _path(self, index: int) -> Path:
        return self.folder / sample_file(index, self.shard_size)

    def _row(self, index: int, sample: TokenSample, content: bytes | memoryview) -> Row:
        return {
            "sample_id": sample_file(index, self.shard_size),
            "id": sample.id,
            "length": len(sample),
            "token_hash": token_hash(sample.input_ids),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }

    def _store(self, index: int, sample: TokenSample, found: Features) -> Row:
        record = self.form.record(sample, found)
        if record is None:
            return {"id": sample.id, "dropped": NOT_FINITE}
        content = record_bytes(record)
        if self.writes:
            write_atomically(self._path(index), content)
        return self._row(index, sample, content)
