"""The small files of a store's folder, read and claimed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path

from specforge_dstill.errors import UserError
from specforge_dstill.files import create_once, json_bytes, make_folder, reading
from specforge_dstill.trajectory_store.identity import IDENTITY_FILE, StorePlan
from specforge_dstill.trajectory_store.manifest import MANIFEST_FILE, Manifest
from specforge_dstill.trajectory_store.matching import require_same
from specforge_dstill.trajectory_store.place import refuse_cache, refuse_foreign
from specforge_dstill.trajectory_store.sharding import shard_name

COLLECT_AGAIN = "run --mode dstill_collect again"


def read_plan(folder: Path) -> StorePlan | None:
    """What ``identity.json`` says; None when there is none. Raises: ``UserError`` if damaged."""
    return plan_in(read_file(folder, IDENTITY_FILE), folder)


def read_manifest(folder: Path) -> Manifest | None:
    """What ``manifest.json`` says; None when there is none. Raises: ``UserError`` if damaged."""
    return manifest_in(read_file(folder, MANIFEST_FILE), folder)


def plan_in(content: bytes | None, where: Path | str) -> StorePlan | None:
    """The plan in the identity file of the store at ``where``, as :func:`read_plan`."""
    if content is None:
        return None
    try:
        return parse_plan(content)
    except ValueError as error:
        raise UserError(
            f"{where}/{IDENTITY_FILE} is damaged ({error}); delete it and {COLLECT_AGAIN}: "
            "shards made with other settings will be refused, not replaced"
        ) from error


def manifest_in(content: bytes | None, where: Path | str) -> Manifest | None:
    """The manifest in the file of the store at ``where``, as :func:`read_manifest`."""
    if content is None:
        return None
    try:
        return Manifest.from_bytes(content)
    except ValueError as error:
        raise UserError(
            f"{where}/{MANIFEST_FILE} is damaged ({error}); delete it and {COLLECT_AGAIN}"
        ) from error


def parse_plan(content: bytes) -> StorePlan:
    """The plan in an identity file's bytes. Raises: ``ValueError`` unless every byte fits."""
    plan = StorePlan.from_json(json.loads(content))
    if json_bytes(plan.to_json()) != content:
        raise ValueError("it is not written as a store writes it")
    return plan


def claim(folder: Path, plan: StorePlan) -> StorePlan:
    """Make ``folder`` the store of ``plan``, or find that it already is.

    Any number of processes may call this at once. Returns the plan that the folder holds, which
    can differ from ``plan`` in library versions, and in a cache that one of the two does not know.

    Raises: ``UserError`` naming each setting that differs; when the folder cannot be written, or
    holds something else.
    """
    make_folder(folder)
    return claimed(
        folder,
        plan,
        names=lambda: [path.name for path in folder.iterdir()],
        read=lambda name: read_file(folder, name),
        create=lambda name, content: create_once(folder / name, content),
    )


def claimed(
    where: Path | str,
    plan: StorePlan,
    *,
    names: Callable[[], Collection[str]],
    read: Callable[[str], bytes | None],
    create: Callable[[str, bytes], None],
) -> StorePlan:
    """As :func:`claim`, at any place that can be listed and whose small files can be read and
    created."""
    held = plan_in(read(IDENTITY_FILE), where)
    if held is None:
        refuse_cache(where, read)
        refuse_foreign(where, names())
        # An identity file can have been deleted, or damaged.
        manifest = manifest_in(read(MANIFEST_FILE), where)
        held = manifest.plan if manifest else plan
        require_same(where, held, plan)
        create(IDENTITY_FILE, json_bytes(held.to_json()))
        held = plan_in(read(IDENTITY_FILE), where) or held
    require_same(where, held, plan)
    return held


def absent_shards(folder: Path, plan: StorePlan) -> list[int]:
    """Indices of the shards that have no file, by one listing of the folder."""
    present = {path.name for path in folder.iterdir()}
    return [i for i in range(plan.shards) if shard_name(i, plan.shards) not in present]


def read_file(folder: Path, name: str) -> bytes | None:
    """A small file's content; None when there is none. Raises: ``UserError``."""
    with reading(folder / name):
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError:
            return None
