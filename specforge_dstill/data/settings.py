"""The settings that made a file or folder, kept in JSON beside what they made."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from specforge_dstill.errors import UserError
from specforge_dstill.files import create_once, json_bytes, reading


def read_settings(path: Path) -> dict[str, Any] | None:
    """What ``path`` holds, None when it is not there. UserError when it is no settings file."""
    if not path.exists():
        return None
    try:
        with reading(path):
            found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: is not a settings file")
    return found


def claim_settings(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Record ``settings`` in ``path`` unless some are there; the settings that then are there."""
    if not path.exists():
        create_once(path, json_bytes(settings))
    return read_settings(path) or {}


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], *, ignored: Collection[str] = ()
) -> str:
    """ "name was X and is now Y" for each setting that differs, "" when none does."""
    return "; ".join(
        f"{key} was {old.get(key)!r} and is now {new.get(key)!r}"
        for key in sorted({*old, *new} - {*ignored})
        if old.get(key) != new.get(key)
    )
