"""Checksums while writing, and those that storage servers tell."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MD5 = re.compile(r"[0-9a-f]{32}")


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


def server_confirms(info: Mapping[str, Any], path: Path, sha256: str) -> bool:
    """Whether a storage server's own checksum says that it holds the bytes of ``path``.

    Args:
        info: what fsspec tells of the server's file.
        sha256: of ``path``, hex.
    """
    if (info.get("lfs") or {}).get("sha256") == sha256:  # the Hugging Face Hub
        return True
    told = str(info.get("ETag", "")).strip('"').lower()  # S3 and its kin
    if not _MD5.fullmatch(told):
        told = base64.b64decode(info.get("md5Hash", "")).hex()  # Google Cloud Storage
    return bool(told) and told == _md5_of(path)


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
