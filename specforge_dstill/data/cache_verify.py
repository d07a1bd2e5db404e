"""What there is to verify of a feature cache, and setting aside what is damaged.

Every byte of a capture of ours is under a checksum: a feature file's is in its shard's marker and
in samples.jsonl, whose own is in manifest.json; markers, manifest.json and capture.json hold one
of themselves. Of other caches the structure is checked, the CRCs within the files, and that every
state is finite.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from specforge_dstill.damage import Check, Checks, Damage, content_problem, set_aside
from specforge_dstill.data.cache_folder import feature_names, is_captured, is_feature_file
from specforge_dstill.data.capture_state import CaptureState
from specforge_dstill.data.file_structure import structure_problem
from specforge_dstill.data.markers import (
    MarkerError,
    Row,
    marked_shards,
    read_marker,
    write_marker,
)


def cache_checks(folder: Path) -> Checks:
    """What there is to verify of a cache, finished or not, ours or not."""
    files = feature_names(folder)
    if not is_captured(folder):
        note = "it has no manifest: structure, CRCs and finite states are checked"
        return Checks((), _by_structure(folder, files), (note,))
    state = CaptureState.read(folder)
    entered = state.entered()
    rest = [name for name in files if name not in entered]
    problems = {name: state.intruder_problem(name) for name in rest}
    left = [name for name, problem in problems.items() if problem is None]
    intruders = [Damage(name, problem) for name, problem in problems.items() if problem]
    notes = [state.progress()]
    if left:
        notes.append(f"{len(left)} files not entered yet are checked by their structure only")
    return Checks(
        found=(*state.damages, *intruders),
        unread=(
            *(_content_check(folder, row) for row in entered.values()),
            *_by_structure(folder, left),
        ),
        notes=tuple(note for note in notes if note is not None),
    )


def repair_cache(folder: Path, damages: Iterable[Damage]) -> dict[str, Path]:
    """Take damaged feature files back from their markers and set every damaged piece aside.

    So that the same capture command does these again, and nothing else. Returns where each piece
    is now; in a folder that capture did not make, what is not recognisably of features stays. The
    markers come first: killed in between, the next capture finds the files itself.
    """
    problems = {damage.piece: damage.problem for damage in damages}
    if not is_captured(folder):
        problems = {piece: why for piece, why in problems.items() if is_feature_file(folder, piece)}
    for shard in marked_shards(folder):
        try:
            marker = read_marker(folder, shard)
        except MarkerError:
            continue
        if marker is not None and any(row["sample_id"] in problems for row in marker.samples):
            write_marker(folder, shard, marker.without(problems))
    moved = {piece: set_aside(folder, piece) for piece in problems}
    return {piece: target for piece, target in moved.items() if target is not None}


def _by_structure(folder: Path, names: Iterable[str]) -> tuple[Check, ...]:
    return tuple(_structure_check(folder, name) for name in names)


def _structure_check(folder: Path, name: str) -> Check:
    return Check(name, lambda: structure_problem(folder / name))


def _content_check(folder: Path, row: Row) -> Check:
    path = folder / row["sample_id"]
    return Check(
        row["sample_id"],
        lambda: content_problem(path, size=row["bytes"], sha256=row["sha256"]),
    )
