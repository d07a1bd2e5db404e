"""What tells one target from another: its configuration and its weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

_PIECE_BYTES = 1 << 20


def config_hash(config: Any) -> str:
    """Hash (16 hex digits) of a transformers configuration, without where it was loaded from."""
    values = config.to_dict()
    for name in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        values.pop(name, None)
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def weights_fingerprint(target: str) -> str | None:
    """What tells one training of a target from another; None for a target that is no folder.

    A hash of each weight file's name, size, and a piece of its middle and its end: a retrained
    model differs there, and a large one is not read whole.
    """
    folder = Path(target)
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    files = sorted(f for suffix in ("safetensors", "bin") for f in folder.glob(f"*.{suffix}"))
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}".encode())
        with file.open("rb") as handle:
            for position in (size // 2, size - _PIECE_BYTES):
                handle.seek(max(0, position))
                digest.update(handle.read(_PIECE_BYTES))
    return digest.hexdigest()[:16]
