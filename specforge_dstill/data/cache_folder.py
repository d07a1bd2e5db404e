"""Whether a folder is one feature cache: told by what lies in it, before anything is touched."""

from __future__ import annotations

import os
import re
from pathlib import Path

from specforge_dstill.data.feature_files import read_tensors
from specforge_dstill.data.manifest import MANIFEST, SAMPLES, CacheManifest
from specforge_dstill.data.markers import IDENTITY, marked_shards
from specforge_dstill.errors import UserError
from specforge_dstill.trajectory_store.identity import IDENTITY_FILE

#: SpecForge's script lays out rows_0-5000/data_17.ckpt, capture data/00000/00000017.ckpt.
_LAID_OUT = re.compile(r"(rows_\d+-\d+/data_\d+|data/\d{5}/\d{8})\.ckpt(\.gz)?")
_DEEPEST = 3
_NAMED = 5


def feature_names(folder: Path) -> list[str]:
    """The feature files under a folder, in SpecForge's order, relative to it."""
    from specforge.runtime.data_plane.offline_reader import list_feature_files

    root = folder.absolute()
    return [Path(path).relative_to(root).as_posix() for path in list_feature_files(str(folder))]


def is_captured(folder: Path) -> bool:
    """Whether a capture of ours wrote into the folder itself."""
    return (folder / IDENTITY).is_file() or bool(marked_shards(folder)) or _has_own_manifest(folder)


def require_cache(folder: Path) -> None:
    """Refuse a folder that is not one feature cache, though caches may lie somewhere in it.

    Raises:
        UserError: it holds caches or stores, to be named one by one, or no features where
            capture or SpecForge's own script lays them.
    """
    if is_captured(folder):
        return
    nested = _nested(folder)
    if nested:
        named = ", ".join(str(folder / name) for name in nested[:_NAMED])
        more = f" and {len(nested) - _NAMED} more" if len(nested) > _NAMED else ""
        raise UserError(
            f"{folder}: is not itself a cache or a store but holds some; name one of: {named}{more}"
        )
    names = feature_names(folder)
    if not names:
        raise UserError(
            f"{folder}: neither a feature cache nor a trajectory store; name "
            "the folder that capture or --mode dstill_collect wrote"
        )
    deep = next((name for name in names if name.count("/") >= _DEEPEST), None)
    if deep is not None:
        raise UserError(
            f"{folder}: neither a feature cache nor a trajectory store, though {deep} lies in it; "
            "name the cache's own folder"
        )


def is_feature_file(folder: Path, name: str) -> bool:
    """Whether a file, damaged or not, is recognisably one of features.

    By its tensors or, where it can no longer be read, by its place in a cache. Never if it holds
    more than tensors.
    """
    try:
        return {"input_ids", "loss_mask"} <= set(read_tensors(folder / name))
    except UserError as error:
        unreadable = "cannot be read" in str(error)
        return unreadable and _LAID_OUT.fullmatch(name) is not None


def _has_own_manifest(folder: Path) -> bool:
    try:
        return CacheManifest.read(folder) is not None
    except UserError:
        # Someone else's, or a damaged one: then the list beside it tells.
        return (folder / MANIFEST).is_file() and (folder / SAMPLES).is_file()


def _nested(folder: Path) -> list[str]:
    """The folders below that are a capture's or a store's, relative."""
    return sorted(
        Path(home).relative_to(folder).as_posix()
        for home, _, names in os.walk(folder)
        if Path(home) != folder and {IDENTITY, IDENTITY_FILE} & set(names)
    )
