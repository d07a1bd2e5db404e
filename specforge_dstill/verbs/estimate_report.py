"""An estimate as a table with its arithmetic, and as JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specforge_dstill.data.estimate import CacheCost, Counts, StoreCost
from specforge_dstill.data.estimate_time import Hours, Room, Training
from specforge_dstill.table import byte_text
from specforge_dstill.verbs.estimate_settings import Settings

Line = tuple[str, str]
_WIDTH = 16


@dataclass(frozen=True)
class CostEstimate:
    """All of it.

    ``store`` is None where no trajectories are stored.
    """

    settings: Settings
    counts: Counts
    cache: CacheCost
    store: StoreCost | None
    times: tuple[Hours | Training, ...]
    rooms: tuple[Room, ...]

    def text(self) -> str:
        """The table."""
        sections = [
            (f"samples: {self.counts.source}", self._samples()),
            (f"feature cache: {byte_text(self.cache.total)}", self._cache()),
            (self._store_title(), self._store()),
        ]
        if self.times:
            sections.append(("time", self._times()))
        if self.rooms:
            sections.append(("disk", [("", room.text) for room in self.rooms]))
        return "\n\n".join(
            "\n".join([title, *(_line(label, value) for label, value in lines)])
            for title, lines in sections
        )

    def to_json(self) -> dict[str, Any]:
        """JSON values; bytes, counts and hours."""
        settings = {name: value for name, value in vars(self.settings).items() if name != "run"}
        content = {
            "settings": settings,
            "counts": vars(self.counts),
            "cache": {
                "bytes_per_token": self.cache.bytes_per_token,
                "bytes_per_file": self.cache.bytes_per_file,
                "files": self.cache.samples,
                "bytes": self.cache.total,
            },
            "trajectories": None,
            "hours": [{**vars(time), "hours": time.hours} for time in self.times],
            "disk": [{**vars(room), "fits": room.fits} for room in self.rooms],
        }
        if self.store is not None:
            content["trajectories"] = {
                "bytes_per_block": self.store.bytes_per_block,
                "blocks": self.store.blocks,
                "shards": self.store.shards,
                "bytes": self.store.total,
            }
        return content

    def _samples(self) -> list[Line]:
        counts = self.counts
        lines = [("samples", f"{counts.samples:,}")]
        if counts.left_out:
            lines.append(("left out", f"{counts.left_out:,} that capture cannot use"))
        mean = _mean(counts.tokens / counts.samples)
        lines.append(("tokens", f"{counts.tokens:,}; {mean} a sample"))
        if counts.scored is not None:
            lines.append(("scored", f"{counts.scored:,} tokens, {counts.anchors:,} valid anchors"))
        most = self.settings.anchors
        per_sample = "every valid anchor" if most is None else f"at most {most:,} a sample"
        if most is None and counts.anchors is None:
            per_sample = "every token but the last: give --anchors for fewer"
        return [*lines, ("blocks", f"{counts.blocks:,}; {per_sample}")]

    def _cache(self) -> list[Line]:
        cache, samples = self.cache, self.counts.samples
        tokens = f"{_mean(cache.tokens / samples)} tokens x {cache.bytes_per_token:,} B"
        lines = [
            ("a token", f"{cache.bytes_per_token:,} B = {cache.per_token_text}"),
            _per_sample(cache.total / samples, tokens, f"{cache.bytes_per_file:,} B (file)"),
            ("in all", f"{byte_text(cache.total)} in {samples:,} files, as {cache.dtype}"),
        ]
        if cache.dtype != "fp8" and not cache.with_last:
            smaller = self.settings.cache(self.counts, dtype="fp8")
            lines.append(("--dtype fp8", byte_text(smaller.total)))
        return lines

    def _store_title(self) -> str:
        size = "none" if self.store is None else byte_text(self.store.total)
        return f"trajectories: {size}"

    def _store(self) -> list[Line]:
        if self.store is None:
            return [("", "dstill.trajectories: online; the student's steps roll out their own")]
        store, settings, samples = self.store, self.settings, self.counts.samples
        other = "commit" if settings.record == "full" else "full"
        passes = f", K = {settings.steps}" if settings.record == "full" else ""
        shape = f"B = {settings.block_size}, top-{settings.top_k}, record: {settings.record}"
        blocks = f"{_mean(store.blocks / samples)} blocks x {store.bytes_per_block:,} B"
        shards = f"{store.shards:,} shards of {store.shard_size} samples"
        return [
            ("a block", f"{store.bytes_per_block:,} B = {store.per_block_text}"),
            ("", f"{shape}{passes}"),
            _per_sample(store.total / samples, blocks, f"{store.bytes_per_row} B (row)"),
            ("in all", f"{byte_text(store.total)} in {shards}"),
            (f"record: {other}", byte_text(store.recording(other).total)),
        ]

    def _times(self) -> list[Line]:
        lines: list[Line] = []
        for time in self.times:
            lines.append((time.stage, f"{hours_text(time.hours)} = {time.text}"))
            if isinstance(time, Hours) and time.source != "given":
                lines.append(("", time.source))
        return lines


def hours_text(hours: float) -> str:
    """``3.2 hours``; seconds and minutes below one, days from two on."""
    if hours < 1 / 60:
        return f"{3600 * hours:.2g} seconds"
    if hours < 1:
        return f"{60 * hours:.2g} minutes"
    return f"{hours:.3g} hours" if hours < 48 else f"{hours:,.0f} hours ({hours / 24:.1f} days)"


def _per_sample(size: float, parts: str, rest: str) -> Line:
    return "a sample", f"{byte_text(size)} = {parts} + {rest}"


def _mean(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def _line(label: str, value: str) -> str:
    return f"  {label:<{_WIDTH}}{value}".rstrip()
