"""SHA-256 of files and documents."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

from specforge_dstill.files import json_bytes


class HashingFile(io.BufferedWriter):
    """A new file that knows the SHA-256 of the bytes written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "xb"), buffer_size=1 << 20)
        self._digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return super().write(data)

    def sync(self) -> None:
        """Push everything written so far to the device."""
        self.flush()
        os.fsync(self.fileno())

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes (hex), read in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(content: Any) -> str:
    """SHA-256 (hex) of ``content`` as :func:`json_bytes` writes it."""
    return hashlib.sha256(json_bytes(content)).hexdigest()
