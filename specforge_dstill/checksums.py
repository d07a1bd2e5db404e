"""SHA-256 of files and documents."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from specforge_dstill.files import json_bytes


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes (hex), read in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(content: Any) -> str:
    """SHA-256 (hex) of ``content`` as :func:`json_bytes` writes it."""
    return hashlib.sha256(json_bytes(content)).hexdigest()
