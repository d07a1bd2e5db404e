"""How two stores' settings differ, and the refusals that name each difference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specforge_dstill.errors import UserError
from specforge_dstill.files import json_bytes
from specforge_dstill.trajectory_store.identity import StorePlan

_ABSENT = "(absent)"


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, nested ones by dotted names: ``{name: (ours, theirs)}``."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted({*ours, *theirs}):
        one, other = ours.get(name, _ABSENT), theirs.get(name, _ABSENT)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            nested = differences(one, other)
            found.update({f"{name}.{key}": pair for key, pair in nested.items()})
        elif one != other:
            found[name] = (one, other)
    return found


def _refusals(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The differences that are reasons to refuse: a cache that one side does not know is none."""
    found = differences(ours, theirs)
    if "" in found.get("cache", ()):
        del found["cache"]
    return found


def require_same(where: Path | str, made_with: StorePlan, wanted: StorePlan) -> None:
    """Refuse to continue a collection under other settings.

    Raises: ``UserError`` that names each differing setting with both values.
    """
    ignored = {"versions"}
    found = _refusals(
        {k: v for k, v in made_with.settings().items() if k not in ignored},
        {k: v for k, v in wanted.settings().items() if k not in ignored},
    )
    if not found:
        return
    made = ", ".join(f"{name}={ours}" for name, (ours, _) in found.items())
    run = ", ".join(f"{name}={theirs}" for name, (_, theirs) in found.items())
    raise UserError(
        f"trajectory store {where} was made with {made}, this run has {run}; "
        "use another folder or the same settings"
    )


def require_expected(where: str, plan: StorePlan, expected: Mapping[str, Any]) -> None:
    """Refuse to read a store that does not fit what a run expects.

    Raises: ``UserError`` naming the settings, both values and the way out; ``TypeError`` for a
    setting that no store has.
    """
    settings = plan.settings()
    unknown = sorted(set(expected) - set(settings))
    if unknown:
        raise TypeError(f"a trajectory store has no setting named {', '.join(unknown)}")
    normal = json.loads(json_bytes(dict(expected)))
    found = _refusals({name: settings[name] for name in normal}, normal)
    if "teacher_hash" in found:
        ours, theirs = found["teacher_hash"]
        raise UserError(
            f"trajectory store {where} was collected by another teacher: its weights hash to "
            f"{ours}, those of the teacher named here to {theirs}; name the teacher that collected "
            "it, or run --mode dstill_collect with this one into another folder"
        )
    if "cache" in found:
        raise UserError(
            f"trajectory store {where} was collected from another feature cache than this run's: "
            "their captures differ in target, text, template or dtype; name the store's own cache "
            "in data.hidden_states_path, or run --mode dstill_collect on this one into another "
            "folder"
        )
    if found:
        has = ", ".join(f"{name}={ours}" for name, (ours, _) in found.items())
        run = ", ".join(f"{name}={theirs}" for name, (_, theirs) in found.items())
        raise UserError(
            f"trajectory store {where} has {has}, this run has {run}; use the store's settings, "
            "or run --mode dstill_collect with these into another folder"
        )
