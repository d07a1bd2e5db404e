"""JSON-lines files: reading with line numbers, and writing that survives a kill."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specforge_dstill.errors import UserError
from specforge_dstill.files import reading, write_atomically

_ARRAY = (
    "{0}: the file is one JSON array; it needs one JSON object a line, without brackets and commas "
    "around them (jq -c '.[]' {0} writes that)"
)


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of every line that is not blank.

    A missing or empty file, or a line that is no JSON object, raises UserError.
    """
    with reading(path):
        handle = path.open("rb")
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
        if number == 1 and raw.lstrip().startswith(b"["):
            raise UserError(_ARRAY.format(path)) from error
        message = error.msg.removesuffix(" at")
        raise UserError(
            f"{path}:{number}: the line is not valid JSON ({message} at column {error.colno})"
        ) from error
    if isinstance(value, list) and number == 1:
        raise UserError(_ARRAY.format(path))
    if not isinstance(value, dict):
        raise UserError(f"{path}:{number}: the line is not a JSON object ({{…}})")
    return value


def write_objects(path: Path, objects: Iterable[Mapping[str, Any]]) -> str:
    """Write the objects as one JSON line each, the whole file or nothing. Returns its SHA-256."""
    content = lines(objects)
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def lines(objects: Iterable[Mapping[str, Any]]) -> bytes:
    """What a file of the objects holds."""
    return "".join(map(line, objects)).encode()


def line(item: Mapping[str, Any]) -> str:
    """One object as a JSON line with its newline."""
    return json.dumps(item, ensure_ascii=False) + "\n"
