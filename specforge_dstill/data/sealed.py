"""A cache's small JSON files: each tells its format and holds a checksum of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specforge_dstill.checksums import json_sha256
from specforge_dstill.errors import UserError
from specforge_dstill.files import json_bytes, reading

FORMAT = 2


class UnknownFormatError(UserError):
    """A whole file of another version's format."""


def sealed_bytes(content: Mapping[str, Any]) -> bytes:
    """The file's content; ``checksum`` is over all the rest."""
    return json_bytes({**content, "checksum": json_sha256(content)})


def read_sealed(path: Path) -> dict[str, Any] | None:
    """What a file holds, without its checksum; None when it is not there.

    Raises:
        ValueError: not every byte is as it was written.
        UnknownFormatError: they are, or may be, but by another version.
        UserError: the file cannot be read.
    """
    if not path.is_file():
        return None
    with reading(path):
        content = path.read_bytes()
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    checksum = found.pop("checksum", None)
    whole = checksum is None or content == sealed_bytes(found)
    if whole and found.get("format", FORMAT) != FORMAT:
        raise UnknownFormatError(
            f"{path}: its format is {found['format']!r}, and this version reads {FORMAT}; use the "
            "version that wrote it, or capture into another folder"
        )
    if checksum is None or not whole:
        raise ValueError("it does not match its own checksum")
    return found
