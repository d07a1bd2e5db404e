"""What a feature cache is: which target, layers, template and text made it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specforge_dstill.data import jsonl
from specforge_dstill.errors import UserError
from specforge_dstill.files import json_bytes, write_atomically

MANIFEST = "manifest.json"
SAMPLES = "samples.jsonl"
FORMAT = 1

#: Results, or notes that do not decide what the features are.
_NOT_IDENTITY = ("samples", "dropped", "dropped_ids", "versions", "generation")


@dataclass(frozen=True)
class CacheManifest:
    """Identity and results of one capture.

    ``strategy`` is the SpecForge layout (dflash, dspark), ``keys`` the tensors of each file,
    ``width`` the size of a row of hidden_states = layers x the target's hidden size.
    ``generation`` holds the settings the answers were made with, {} when unknown.
    ``dropped`` counts left-out conversations by reason, ``dropped_ids`` names some of each.
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
    samples: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_ids: dict[str, list[str]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def identity(self) -> dict[str, Any]:
        """The fields that must agree for a capture to be gone on with, as JSON values."""
        return {k: v for k, v in self._as_json().items() if k not in _NOT_IDENTITY}

    def write(self, folder: Path) -> None:
        """Write manifest.json, the last file of a capture."""
        write_atomically(folder / MANIFEST, json_bytes(self._as_json()))

    @classmethod
    def read(cls, folder: Path) -> CacheManifest | None:
        """The manifest of a cache, None for one that has none (SpecForge's own script)."""
        path = folder / MANIFEST
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found.get("format") != FORMAT:
                raise ValueError(f"its format is {found.get('format')!r}, this version reads 1")
            found["target_layer_ids"] = tuple(found["target_layer_ids"])
            found["keys"] = tuple(found["keys"])
            return cls(**found)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path}: not a cache's manifest: {error}") from error

    def _as_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self)))


def config_hash(config: Any) -> str:
    """Hash (16 hex digits) of a transformers configuration, without where it was loaded from."""
    values = config.to_dict()
    for name in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        values.pop(name, None)
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """The cache's samples.jsonl: sample_id, id, length and token_hash of every file."""
    return [row for _, row in jsonl.read_objects(folder / SAMPLES)]
