"""Reading a whole store against its checksums."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from specforge_dstill.errors import UserError
from specforge_dstill.files import json_bytes
from specforge_dstill.trajectory_store.checksums import sha256_of
from specforge_dstill.trajectory_store.folder import (
    COLLECT_AGAIN,
    absent_shards,
    read_manifest,
    read_plan,
)
from specforge_dstill.trajectory_store.identity import IDENTITY_FILE
from specforge_dstill.trajectory_store.manifest import MANIFEST_FILE, Manifest, ShardEntry
from specforge_dstill.trajectory_store.samples_file import SAMPLES_FILE


@dataclass(frozen=True)
class Damage:
    """A piece of a store that is not as it was written: file name, and what is wrong."""

    piece: str
    problem: str


def require_manifest(folder: Path) -> Manifest:
    """The manifest of a complete store.

    Errors: ``UserError`` that says how far the collection came, when there is no manifest.
    """
    if not folder.is_dir():
        raise UserError(
            f"there is no trajectory store in {folder}; run --mode dstill_collect first"
        )
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest
    plan = read_plan(folder)
    if plan is None:
        raise UserError(
            f"{folder} is not a trajectory store: it has no {IDENTITY_FILE}; "
            "name the folder that --mode dstill_collect wrote"
        )
    absent = len(absent_shards(folder, plan))
    missing = f"{absent} of {plan.shards} shards" if absent else MANIFEST_FILE
    raise UserError(
        f"trajectory store {folder}: collection is not finished: {missing} missing; {COLLECT_AGAIN}"
    )


def size_damage(folder: Path, entry: ShardEntry) -> Damage | None:
    """What is wrong with a shard that can be told without reading it."""
    try:
        size = (folder / entry.name).stat().st_size
    except FileNotFoundError:
        return Damage(entry.name, "missing")
    except OSError as error:
        return Damage(entry.name, f"unreadable ({error.strerror})")
    if size != entry.bytes:
        return Damage(entry.name, f"{size} bytes instead of {entry.bytes}")
    return None


def verify_store(
    folder: str | os.PathLike[str], *, progress: Callable[[int], None] | None = None
) -> list[Damage]:
    """Read every file of a store and compare it with the manifest's checksums.

    Args:
        progress: called with the number of bytes after each shard.

    Returns what is damaged or missing, in the store's order; empty when all is well.

    Errors: ``UserError`` when the store is not complete or its manifest is damaged.
    """
    folder = Path(folder)
    manifest = require_manifest(folder)
    found = [_identity_damage(folder, manifest), _samples_damage(folder, manifest)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        checks = pool.map(lambda entry: _content_damage(folder, entry), manifest.shards)
        for entry, damage in zip(manifest.shards, checks, strict=True):
            found.append(damage)
            if progress is not None:
                progress(entry.bytes)
    return [damage for damage in found if damage is not None]


def _content_damage(folder: Path, entry: ShardEntry) -> Damage | None:
    damage = size_damage(folder, entry)
    if damage is not None:
        return damage
    try:
        checksum = sha256_of(folder / entry.name)
    except OSError as error:
        return Damage(entry.name, f"unreadable ({error.strerror})")
    return None if checksum == entry.sha256 else Damage(entry.name, "does not match its checksum")


def _samples_damage(folder: Path, manifest: Manifest) -> Damage | None:
    try:
        checksum = sha256_of(folder / SAMPLES_FILE)
    except OSError as error:
        return Damage(SAMPLES_FILE, f"unreadable ({error.strerror})")
    same = checksum == manifest.plan.samples_hash
    return None if same else Damage(SAMPLES_FILE, "does not match its checksum")


def _identity_damage(folder: Path, manifest: Manifest) -> Damage | None:
    try:
        content = (folder / IDENTITY_FILE).read_bytes()
    except OSError as error:
        return Damage(IDENTITY_FILE, f"unreadable ({error.strerror})")
    same = content == json_bytes(manifest.plan.to_json())
    return None if same else Damage(IDENTITY_FILE, "does not match the manifest")
