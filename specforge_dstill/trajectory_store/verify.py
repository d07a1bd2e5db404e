"""Reading a whole store against its checksums, and setting aside what is damaged.

A complete store's manifest holds the checksum of every shard. Until there is one, a shard's lies
beside it. Where neither is readable, a shard is checked for its structure alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from specforge_dstill.checksums import sha256_of
from specforge_dstill.damage import (
    Check,
    Checks,
    Damage,
    content_problem,
    set_aside,
    size_problem,
)
from specforge_dstill.errors import UserError, reason
from specforge_dstill.files import json_bytes
from specforge_dstill.trajectory_store.folder import (
    COLLECT_AGAIN,
    absent_shards,
    read_file,
    read_manifest,
    read_plan,
)
from specforge_dstill.trajectory_store.identity import IDENTITY_FILE, StorePlan
from specforge_dstill.trajectory_store.manifest import MANIFEST_FILE, Manifest, ShardEntry
from specforge_dstill.trajectory_store.place import refuse_cache
from specforge_dstill.trajectory_store.samples_file import SAMPLES_FILE
from specforge_dstill.trajectory_store.shard import Shard, ShardError, open_shard
from specforge_dstill.trajectory_store.shard_file import CHECKSUM_SUFFIX, written_checksum
from specforge_dstill.trajectory_store.sharding import shard_name

_NOT_THERE = f"is not there; {COLLECT_AGAIN}, which writes it and makes no shard anew"
_NO_CHECKSUM = "does not match its own checksum"


def require_manifest(folder: Path) -> Manifest:
    """The manifest of a complete store.

    Raises: ``UserError`` that says how far the collection came, when there is no manifest.
    """
    if not folder.is_dir():
        raise UserError(
            f"there is no trajectory store in {folder}; run --mode dstill_collect first"
        )
    refuse_cache(folder, partial(read_file, folder))
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest
    plan = read_plan(folder)
    if plan is None:
        raise UserError(
            f"{folder} is not a trajectory store: it has no {IDENTITY_FILE}; "
            "name the folder that --mode dstill_collect wrote"
        )
    raise UserError(
        f"trajectory store {folder}: collection is not finished: {_missing(folder, plan)} missing; "
        f"{COLLECT_AGAIN}"
    )


def size_damage(folder: Path, entry: ShardEntry) -> Damage | None:
    """What is wrong with a shard that can be told without reading it."""
    problem = size_problem(folder / entry.name, entry.bytes)
    return None if problem is None else Damage(entry.name, problem)


def verify_store(
    folder: str | os.PathLike[str], *, progress: Callable[[int], None] = lambda count: None
) -> list[Damage]:
    """Read every file of a store and compare it with its checksum.

    ``progress`` is told of every shard. Returns what is damaged or missing.
    """
    return store_checks(Path(folder)).run(progress)


def store_checks(folder: Path) -> Checks:
    """What there is to verify of a store, complete or not."""
    try:
        manifest = read_manifest(folder)
    except UserError:
        return _unlisted(folder, [Damage(MANIFEST_FILE, _NO_CHECKSUM)])
    if manifest is None:
        return _unlisted(folder, [])
    return Checks(
        found=tuple(beside_shards(folder, manifest)),
        unread=tuple(_listed_check(folder, entry) for entry in manifest.shards),
    )


def beside_shards(folder: Path, manifest: Manifest) -> list[Damage]:
    """What is wrong with the small files of a complete store, which do not hold records."""
    found = [_identity_damage(folder, manifest), _samples_damage(folder, manifest)]
    return [damage for damage in found if damage is not None]


def repair_store(folder: Path, damages: list[Damage]) -> dict[str, Path]:
    """Set damaged pieces aside, so that a collection with the same settings makes them again.

    A shard that is gone is a shard to collect; the other files are written again when it ends.
    Returns where each piece is now.
    """
    moved = {}
    for damage in damages:
        set_aside(folder, damage.piece + CHECKSUM_SUFFIX)
        target = set_aside(folder, damage.piece)
        if target is not None:
            moved[damage.piece] = target
    return moved


def _listed_check(folder: Path, entry: ShardEntry) -> Check:
    path = folder / entry.name
    return Check(entry.name, lambda: content_problem(path, size=entry.bytes, sha256=entry.sha256))


def _samples_damage(folder: Path, manifest: Manifest) -> Damage | None:
    try:
        checksum = sha256_of(folder / SAMPLES_FILE)
    except FileNotFoundError:
        return Damage(SAMPLES_FILE, _NOT_THERE)
    except OSError as error:
        return Damage(SAMPLES_FILE, f"unreadable ({error.strerror})")
    same = checksum == manifest.plan.samples_hash
    return None if same else Damage(SAMPLES_FILE, "does not match its checksum")


def _identity_damage(folder: Path, manifest: Manifest) -> Damage | None:
    try:
        content = (folder / IDENTITY_FILE).read_bytes()
    except FileNotFoundError:
        return Damage(IDENTITY_FILE, _NOT_THERE)
    except OSError as error:
        return Damage(IDENTITY_FILE, f"unreadable ({error.strerror})")
    same = content == json_bytes(manifest.plan.to_json())
    return None if same else Damage(IDENTITY_FILE, "does not match the manifest")


def _missing(folder: Path, plan: StorePlan) -> str:
    absent = len(absent_shards(folder, plan))
    return f"{absent} of {plan.shards} shards" if absent else MANIFEST_FILE


def _unlisted(folder: Path, damages: list[Damage]) -> Checks:
    """A store that no readable manifest lists: unfinished, or with a damaged one."""
    paths = sorted(folder.glob("shard-*.arrow"))
    plan, problem = _plan(folder, paths)
    if problem is not None:
        damages = [*damages, Damage(IDENTITY_FILE, problem)]
    notes = []
    if damages:
        notes.append("without it the shards are checked by their structure only")
    if plan is not None and not damages:
        notes.append(
            f"the collection is not finished: {_missing(folder, plan)} missing; {COLLECT_AGAIN}"
        )
    indices = {} if plan is None else {shard_name(i, plan.shards): i for i in range(plan.shards)}
    unread = tuple(_unlisted_check(path, plan, indices.get(path.name)) for path in paths)
    return Checks(tuple(damages), unread, tuple(notes))


def _plan(folder: Path, shards: list[Path]) -> tuple[StorePlan | None, str | None]:
    """The plan in identity.json if it is that of the shards; what is wrong with it otherwise."""
    try:
        plan = read_plan(folder)
    except UserError:
        return None, "is not as it was written"
    if plan is None:
        return None, "missing"
    made_by = Counter(filter(None, map(_plan_digest, shards)))
    if made_by and plan.digest not in made_by:
        return None, "is not the one that the shards were made by"
    return plan, None


def _plan_digest(path: Path) -> str | None:
    try:
        return Shard(path).form.plan_digest
    except ShardError:
        return None


def _unlisted_check(path: Path, plan: StorePlan | None, index: int | None) -> Check:
    """Of a shard's structure, and its checksum while that lies beside it."""

    def problem() -> str | None:
        try:
            if plan is None:
                Shard(path)
            elif index is None:
                return f"is none of the {plan.shards} shards"
            else:
                open_shard(path.parent, plan, index)
            checksum = written_checksum(path)
            if checksum is not None and checksum != sha256_of(path):
                return "does not match its checksum"
        except ShardError as error:
            return str(error)
        except ValueError:
            return "the checksum beside it is damaged"
        except (OSError, UserError) as error:
            return f"unreadable ({reason(error)})"
        return None

    return Check(path.name, problem)
