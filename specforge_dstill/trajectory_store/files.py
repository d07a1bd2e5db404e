"""Files that are complete or absent, checksums, and one-line errors for the file system's."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specforge_dstill.errors import UserError

_TEMPORARY_SUFFIX = ".tmp"


@contextmanager
def os_errors_named(path: Path, action: str) -> Iterator[None]:
    """Turn an ``OSError`` (full disk, read-only folder) into a ``UserError`` naming ``path``."""
    try:
        yield
    except OSError as error:
        # Arrow's own messages run over several lines; the errno's text is the useful part.
        reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
        raise UserError(f"cannot {action} {path}: {reason}") from error


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


def temporary_path(path: Path) -> Path:
    """A name in the same folder that no other process uses."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}")


def temporary_files(folder: Path) -> list[Path]:
    """What killed writers left behind in ``folder``."""
    return sorted(folder.glob(f".*{_TEMPORARY_SUFFIX}"))


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` survive a power cut, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems cannot
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``: readers see the old file or the new one, whole.

    Errors: ``UserError`` naming ``path`` when the file system refuses.
    """
    temporary = temporary_path(path)
    with os_errors_named(path, "write"):
        try:
            _write_synced(temporary, content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def create_once(path: Path, content: bytes) -> None:
    """Create ``path`` with ``content``, whole, unless it exists; the first caller wins.

    Errors: ``UserError`` naming ``path`` when the file system refuses.
    """
    temporary = temporary_path(path)
    with os_errors_named(path, "write"):
        try:
            _write_synced(temporary, content)
            try:
                os.link(temporary, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                if not path.exists():
                    temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _write_synced(path: Path, content: bytes) -> None:
    with HashingFile(path) as file:
        file.write(content)
        file.sync()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes (hex), read in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_bytes(content: Any) -> bytes:
    """The one way a JSON document is written: the same content gives the same bytes."""
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def json_sha256(content: Any) -> str:
    """SHA-256 (hex) of ``content`` as :func:`json_bytes` writes it."""
    return hashlib.sha256(json_bytes(content)).hexdigest()
