"""What a feature cache is: which target, layers, template and text made it.

``manifest.json`` is written last and holds a checksum of itself and of ``samples.jsonl``, whose
rows hold the checksum of every feature file: from it every byte of a cache can be checked.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specforge_dstill.checksums import json_sha256, sha256_of
from specforge_dstill.data import jsonl
from specforge_dstill.data.sealed import FORMAT, read_sealed, sealed_bytes
from specforge_dstill.errors import UserError
from specforge_dstill.files import reading, write_atomically

MANIFEST = "manifest.json"
SAMPLES = "samples.jsonl"

#: Notes that do not decide what the features are.
_NOTES = ("draft_config", "options", "versions", "generation")
#: What decides them, beside the target; the names of files and folders do not.
_DECIDING = (
    *("target_hash", "target_layer_ids", "strategy", "dtype", "chat_template_hash"),
    *("template_kwargs", "last_turn_only", "max_length", "conversations_hash"),
)
_RESULTS = ("samples", "tokens", "feature_bytes", "samples_sha256", "dropped", "dropped_ids")


@dataclass(frozen=True)
class CacheManifest:
    """Identity and results of one capture.

    ``target_hash`` and ``target_weights`` are of the target's configuration and weights, the latter
    "" where they are in no folder. ``strategy`` is the SpecForge layout (dflash, dspark), ``keys``
    the tensors of each file, ``width`` the size of a row of hidden_states = layers x the target's
    hidden size. ``template_day`` ("2026-01-31") is what the chat template printed, "" where it
    prints no day, or today's. ``generation`` holds the settings the answers were made with, {} when
    unknown; ``options`` those of the capture that do not decide more than the last digits;
    ``draft_config`` is the one whose layers were captured. ``samples``, ``tokens`` and
    ``feature_bytes`` count the feature files and what they hold, ``samples_sha256`` is that of
    samples.jsonl. ``dropped`` counts left-out conversations by reason, ``dropped_ids`` names some
    of each.
    """

    target: str
    target_hash: str
    target_layer_ids: tuple[int, ...]
    strategy: str
    keys: tuple[str, ...]
    width: int
    dtype: str
    chat_template: str
    chat_template_hash: str
    max_length: int
    conversations: str
    conversations_hash: str
    conversation_count: int
    shard_size: int
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    last_turn_only: bool = False
    generation: dict[str, Any] = field(default_factory=dict)
    draft_config: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    samples: int = 0
    tokens: int = 0
    feature_bytes: int = 0
    samples_sha256: str = ""
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_ids: dict[str, list[str]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    target_weights: str = ""
    template_day: str = ""
    format: int = FORMAT

    def identity(self) -> dict[str, Any]:
        """The fields that must agree for a capture to be gone on with, as JSON values."""
        return {k: v for k, v in self._as_json().items() if k not in (*_NOTES, *_RESULTS)}

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the features; the same for a cache that was moved."""
        own = {name: getattr(self, name) for name in _DECIDING}
        return json_sha256({**own, "target": self.target_weights or self.target})

    def is_of(self, other: CacheManifest) -> bool:
        """Whether both are of the same files; what is only noted may differ."""
        notes = {name: getattr(self, name) for name in _NOTES}
        return dataclasses.replace(other, **notes) == self

    def write(self, folder: Path) -> None:
        """Write manifest.json, the last file of a capture."""
        write_atomically(folder / MANIFEST, sealed_bytes(self._as_json()))

    @classmethod
    def read(cls, folder: Path) -> CacheManifest | None:
        """The manifest of a cache, None for one that has none (SpecForge's own script).

        Raises: ``UserError`` when it is damaged, or another version's (``UnknownFormatError``).
        """
        path = folder / MANIFEST
        try:
            found = read_sealed(path)
            return None if found is None else cls._of_json(found)
        except ValueError as error:
            raise UserError(
                f"{path}: not a cache's manifest: {error}; if it is damaged, set it aside with: "
                f"specforge-dstill verify {folder} --repair, and run the same capture command again"
            ) from error

    def _as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        if not self.template_day:  # as before there was one
            del found["template_day"]
        return found

    @classmethod
    def _of_json(cls, found: dict[str, Any]) -> CacheManifest:
        try:
            lists = {name: tuple(found[name]) for name in ("target_layer_ids", "keys")}
            return cls(**{**found, **lists})
        except (KeyError, TypeError) as error:
            raise ValueError(f"its fields are not a manifest's ({error})") from error


def cache_digest(folder: str | Path) -> str:
    """:attr:`CacheManifest.digest` of a cache; "" of one that has no manifest."""
    path = Path(folder)
    manifest = CacheManifest.read(path) if path.is_dir() else None
    return "" if manifest is None else manifest.digest


def read_samples(folder: Path, manifest: CacheManifest) -> list[dict[str, Any]]:
    """The cache's samples.jsonl: a row of every file, see :mod:`specforge_dstill.data.markers`.

    Raises: ``UserError`` when it cannot be read, or is not the one that ``manifest`` enters.
    """
    path = folder / SAMPLES
    with reading(path):
        checksum = sha256_of(path)
    if checksum != manifest.samples_sha256:
        raise UserError(
            f"{path} does not match its checksum; set it aside with: specforge-dstill verify "
            f"{folder} --repair, and run the same capture command again"
        )
    return [row for _, row in jsonl.read_objects(path)]
