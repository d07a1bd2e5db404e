"""JSON-lines files: reading with line numbers, and writing that survives a kill."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specforge_dstill.errors import UserError


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of every line that is not blank.

    A missing or empty file, or a line that is no JSON object, raises UserError.
    """
    try:
        handle = path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    empty = True
    with handle:
        for number, raw in enumerate(handle, start=1):
            if not raw.strip():
                continue
            empty = False
            yield number, _parse(path, number, raw)
    if empty:
        raise UserError(f"{path}: the file is empty; it needs one JSON object a line")


def _parse(path: Path, number: int, raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{number}: the line is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}:{number}: the line is not valid JSON ({error.msg} at column {error.colno})"
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{path}:{number}: the line is not a JSON object ({{…}})")
    return value


def write_text(path: Path, text: str) -> None:
    """Write a whole file, or leave the old one: temporary name, flush to disk, rename."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        remove_quietly(temporary)
        raise UserError(disk_message(path, error)) from error


def write_objects(path: Path, objects: Iterable[Mapping[str, Any]]) -> None:
    """Write the objects as one JSON line each, as ``write_text`` does."""
    write_text(path, "".join(line(item) for item in objects))


def line(item: Mapping[str, Any]) -> str:
    """One object as a JSON line with its newline."""
    return json.dumps(item, ensure_ascii=False) + "\n"


def disk_message(path: Path, error: OSError) -> str:
    """One line on a write that failed (full or read-only disk, missing folder)."""
    return (
        f"{path}: cannot be written: {error.strerror or error}; what was finished is kept, "
        "make room or choose another folder and run the same command again"
    )


def remove_quietly(path: Path) -> None:
    """Remove a leftover temporary file; no matter if it is gone or cannot be removed."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
