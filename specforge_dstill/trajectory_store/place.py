"""Whether a folder may be a store's. What else lies there is named, not called a damaged store."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path

from specforge_dstill.errors import UserError
from specforge_dstill.trajectory_store.identity import IDENTITY_FILE
from specforge_dstill.trajectory_store.manifest import MANIFEST_FILE
from specforge_dstill.trajectory_store.samples_file import SAMPLES_FILE

# What a capture of ours writes first, and a field of the manifest that it writes last.
_CACHE_FILE = "capture.json"
_CACHE_FIELD = "target_layer_ids"
_OWN = (IDENTITY_FILE, MANIFEST_FILE, SAMPLES_FILE, "damaged")
_ELSEWHERE = "name another folder in dstill.trajectories"


def refuse_cache(where: Path | str, read: Callable[[str], bytes | None]) -> None:
    """UserError when there is a feature cache at ``where``, finished or not, and no store.

    Args:
        read: gives the content of a file there, None when there is none.
    """
    if read(IDENTITY_FILE) is not None:
        return
    if read(_CACHE_FILE) is not None or _is_caches(read(MANIFEST_FILE)):
        raise UserError(f"{where} is a feature cache; {_ELSEWHERE}")


def refuse_foreign(where: Path | str, names: Collection[str]) -> None:
    """UserError when files lie at ``where`` and none of them is a store's or what is left of one.

    Args:
        names: of everything there.
    """
    foreign = sorted(name for name in names if not name.startswith("."))
    if foreign and not any(map(_is_stores, names)):
        raise UserError(
            f"{where} is not empty and holds no trajectory store ({foreign[0]} is in it); "
            f"{_ELSEWHERE}"
        )


def has_store(names: Collection[str]) -> bool:
    """Whether a collection was begun in a folder of these files."""
    return any(name in (IDENTITY_FILE, MANIFEST_FILE) or _is_shard(name) for name in names)


def _is_stores(name: str) -> bool:
    temporary = name.startswith(f".{IDENTITY_FILE}.")  # of a rank that claims the folder just now
    return name in _OWN or _is_shard(name) or temporary


def _is_shard(name: str) -> bool:
    return name.startswith("shard-") and ".arrow" in name


def _is_caches(manifest: bytes | None) -> bool:
    try:
        found = json.loads(manifest or b"null")
    except ValueError:
        return False
    return isinstance(found, dict) and _CACHE_FIELD in found
