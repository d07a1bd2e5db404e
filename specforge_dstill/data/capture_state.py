"""What the small files of a capture say, as far as they are whole."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from specforge_dstill.checksums import json_sha256
from specforge_dstill.damage import Damage
from specforge_dstill.data.cache_folder import is_captured
from specforge_dstill.data.manifest import MANIFEST, SAMPLES, CacheManifest, read_samples
from specforge_dstill.data.markers import (
    IDENTITY,
    Marker,
    MarkerError,
    Row,
    marked_shards,
    marker_name,
    read_identity,
    read_marker,
)
from specforge_dstill.data.sealed import UnknownFormatError
from specforge_dstill.errors import UserError
from specforge_dstill.trajectory_store.sharding import shard_count

_OWN_CHECKSUM = "does not match its own checksum"


@dataclass
class CaptureState:
    """The small files of a capture of ours.

    Attributes:
        manifest: None when there is none, or it is damaged.
        capture: the identity's digest; None when neither manifest nor capture.json tells it.
        shards: all of the capture, or as many as are marked when that is not known.
        markers: those that are whole, by shard.
        listed: the rows of samples.jsonl.
        damages: what is wrong with these files.
    """

    folder: Path
    manifest: CacheManifest | None = None
    capture: str | None = None
    shards: range = range(0)
    markers: dict[int, Marker] = field(default_factory=dict)
    listed: list[Row] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> CaptureState:
        """Raises: ``UnknownFormatError`` for a capture of another version."""
        found = cls(folder)
        found._read_manifest()
        found._read_identity()
        found._read_markers()
        found._read_samples()
        return found

    def entered(self) -> dict[str, Row]:
        """The rows of feature files by sample id: the markers', and those of the list where a
        marker is lost."""
        rows = [row for marker in self.markers.values() for row in marker.samples]
        lost = {f"data/{shard:05d}" for shard in self.shards if shard not in self.markers}
        rows += [row for row in self.listed if row["sample_id"].rpartition("/")[0] in lost]
        return {row["sample_id"]: row for row in rows}

    def intruder_problem(self, name: str) -> str | None:
        """What is wrong with a feature file that no row tells of, unless a killed run left it."""
        if self.capture is None and not self.markers:
            return f"was left by a capture of which nothing else is known ({IDENTITY} is lost)"
        marker = self.markers.get(self._shard_of(name))
        if self._shard_of(name) not in self.shards or (marker is not None and marker.complete):
            return "is entered by no marker"
        return None

    def progress(self) -> str | None:
        """How far the capture came; None when it is finished."""
        done = sum(marker.complete for marker in self.markers.values())
        if self.manifest is not None and done == len(self.shards):
            return None
        return (
            f"the capture is not finished: {done} of {len(self.shards)} shards entered; run the "
            "same capture command again for the rest"
        )

    def lost(self, names: Collection[str]) -> str | None:
        """Of the feature files that are entered, those not among the ``names`` that are there."""
        entered = self.entered()
        missing = sorted(entered.keys() - set(names))
        if not missing:
            return None
        return f"{len(missing)} of {len(entered)} files are missing (first: {missing[0]})"

    def _read_manifest(self) -> None:
        try:
            self.manifest = CacheManifest.read(self.folder)
        except UnknownFormatError:
            raise
        except UserError:
            self.damages.append(Damage(MANIFEST, _OWN_CHECKSUM))

    def _read_identity(self) -> None:
        own = None if self.manifest is None else self.manifest.identity()
        try:
            found = read_identity(self.folder)
            if found is None:
                self.damages.append(Damage(IDENTITY, "missing"))
            elif own is not None and found != own:
                self.damages.append(Damage(IDENTITY, "is not the manifest's"))
        except UnknownFormatError:
            raise
        except UserError:
            found = None
            self.damages.append(Damage(IDENTITY, _OWN_CHECKSUM))
        identity = own or found
        if identity is not None:
            self.capture = json_sha256(identity)
            count = shard_count(identity["conversation_count"], identity["shard_size"])
            self.shards = range(count)
        else:
            self.shards = range(max(marked_shards(self.folder), default=-1) + 1)

    def _read_markers(self) -> None:
        for shard in self.shards:
            try:
                marker = read_marker(self.folder, shard)
            except MarkerError as error:
                self.damages.append(Damage(marker_name(shard), str(error)))
                continue
            if marker is None:
                if self.manifest is not None:
                    self.damages.append(Damage(marker_name(shard), "missing"))
            elif self.capture not in (None, marker.capture):
                self.damages.append(Damage(marker_name(shard), "is of another capture"))
            else:
                self.markers[shard] = marker

    def _read_samples(self) -> None:
        if self.manifest is None:
            return
        try:
            self.listed = read_samples(self.folder, self.manifest)
        except UserError:
            missing = not (self.folder / SAMPLES).is_file()
            problem = "missing" if missing else "does not match its checksum"
            self.damages.append(Damage(SAMPLES, problem))
            return
        markers = [self.markers.get(shard) for shard in self.shards]
        if all(marker is not None and marker.complete for marker in markers):
            rows = [row for marker in markers if marker is not None for row in marker.samples]
            if rows != self.listed:
                self.damages.append(Damage(SAMPLES, "is not what the markers enter"))

    def _shard_of(self, name: str) -> int:
        folder = name.rpartition("/")[0].removeprefix("data/")
        return int(folder) if folder.isdecimal() else -1


def cache_state(folder: Path, names: Collection[str]) -> str:
    """How complete a cache is, told by its small files and the ``names`` of its feature files."""
    if not is_captured(folder):
        return "without a manifest"
    found = CaptureState.read(folder)
    damage = next((f"{damage.piece}: {damage.problem}" for damage in found.damages), None)
    faults = [fault for fault in (found.progress(), found.lost(names), damage) if fault is not None]
    return "; ".join(faults) or "complete"
