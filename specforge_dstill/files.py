"""Files that are complete or absent, and one line for a file system that refuses."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specforge_dstill.errors import UserError, reason

_TEMPORARY_SUFFIX = ".tmp"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` (full disk, read-only folder) into a ``UserError`` naming ``path``."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {_os_reason(error)}; what was finished is kept, "
            "make room or choose another folder and run the same command again"
        ) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` (no such file, no permission) into a ``UserError`` naming ``path``."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {_os_reason(error)}") from error


def make_folder(folder: Path) -> None:
    """Make ``folder`` and those above it. Raises: ``UserError`` when the file system refuses."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Replace ``path`` by ``content``: readers see the old file or the new one, whole.

    Raises: ``UserError`` naming ``path`` when the file system refuses.
    """
    with _written_beside(path, content) as temporary:
        temporary.replace(path)


def create_once(path: Path, content: bytes) -> None:
    """Create ``path`` with ``content``, whole, unless it exists.

    Of several callers at once the first wins; on a file system without hard links one of them, so
    that who must know reads the file.

    Raises: ``UserError`` naming ``path`` when the file system refuses.
    """
    with _written_beside(path, content) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not path.exists():
                temporary.replace(path)


@contextlib.contextmanager
def locked(path: Path, *, busy: str) -> Iterator[int]:
    """Hold the lock of ``path``, an empty file that is made and stays; gives its descriptor.

    A process that inherits the descriptor holds the lock, too. Where the file system has no locks,
    nothing is held.

    Raises: ``UserError``, which says ``busy``, when another process holds it.
    """
    make_folder(path.parent)
    with writing(path):
        file = path.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(busy) from None
        except OSError:
            pass
        yield file.fileno()


@contextlib.contextmanager
def _written_beside(path: Path, content: bytes | memoryview) -> Iterator[Path]:
    """A temporary file beside ``path`` that holds ``content``, to be renamed; gone afterwards."""
    temporary = temporary_path(path)
    with writing(path):
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            remove_quietly(temporary)
    sync_folder(path.parent)


def temporary_path(path: Path) -> Path:
    """A name in the same folder that no other process uses."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}")


def temporary_files(folder: Path) -> list[Path]:
    """What killed writers left behind in ``folder``."""
    return sorted(folder.glob(f".*{_TEMPORARY_SUFFIX}"))


def remove_quietly(path: Path) -> None:
    """Remove a leftover; no matter if it is gone or cannot be removed."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


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


def json_bytes(content: Any) -> bytes:
    """The one way a JSON document is written: the same content gives the same bytes."""
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def _os_reason(error: OSError) -> str:
    # Arrow's own messages run over several lines; the errno's text is the useful part.
    return os.strerror(error.errno) if error.errno else reason(error)


def nearest_folder(path: Path) -> Path:
    """``path`` if it is there, else the nearest folder above it that is."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
