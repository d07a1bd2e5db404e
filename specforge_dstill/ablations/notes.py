"""What a job's folder says of it: with which settings it was begun, and whether it is done."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from specforge_dstill.ablations.job import Job
from specforge_dstill.errors import UserError
from specforge_dstill.files import json_bytes, make_folder, write_atomically
from specforge_dstill.options import DstillOptions

_FILE = "job.json"
_NOTHING = object()
#: Settings that name a folder of the grid's own, and what stands before it.
_PATHS = (
    *("output_dir", "dstill.trajectories"),
    *("model.draft_checkpoint_path", "dstill.student.teacher"),
)
_BELOW = re.compile(r".*/(?=seed-\d+/)")


@dataclass(frozen=True)
class Note:
    """Of one job.

    Attributes:
        inputs: as a job's, of when it was begun; {} in notes of earlier versions.
        begun: differs each time that the job is begun anew, and stays while it is gone on with.
        sources: ``begun`` of each job whose result is in its own.
    """

    settings: dict[str, Any]
    inputs: dict[str, Any] = field(default_factory=dict)
    done: bool = False
    begun: str = ""
    sources: dict[str, str] = field(default_factory=dict)


#: Notes of other versions may hold more.
_KNOWN = {one.name for one in fields(Note)}


def read_notes(jobs: Sequence[Job]) -> dict[str, Note]:
    """Of all jobs that were begun, and are not to be made again.

    Args:
        jobs: each after its sources.

    Raises:
        UserError: as :func:`_read`; a job was made from others than those that are there now; or a
            checkpoint is missing that is still needed.
    """
    notes = {job.name: note for job in jobs if (note := _read(job)) is not None}
    outdated = _outdated(jobs, notes)
    refused = [job for job in jobs if job.name in outdated and not job.remade]
    if refused:
        folders = [str(job.folder) for job in refused]
        raise UserError(
            f"{folders[0]} was made from a {outdated[refused[0].name]} that is no longer there; "
            f"remove {', '.join(folders)} to have them made again, or name another output:"
        )
    current = {name: note for name, note in notes.items() if name not in outdated}
    _check_checkpoints(jobs, done={name for name, note in current.items() if note.done})
    return current


def _outdated(jobs: Sequence[Job], notes: Mapping[str, Note]) -> dict[str, str]:
    """The names of jobs that were made from a source that is gone, each with that one's name.

    Also from a source that is outdated itself, which is found because it comes first.
    """
    found: dict[str, str] = {}
    for job in jobs:
        if job.name in notes:
            note = notes[job.name]
            gone = [one for one in job.sources if one in found or _is_gone(note, one, notes)]
            if gone:
                found[job.name] = gone[0]
    return found


def _is_gone(note: Note, source: str, notes: Mapping[str, Note]) -> bool:
    # Notes of earlier versions have no ``begun``, and take one another for the same.
    return source not in notes or notes[source].begun != note.sources.get(source, "")


def _check_checkpoints(jobs: Sequence[Job], *, done: set[str]) -> None:
    """UserError for a done job whose checkpoint is missing, if a job that is left needs it.

    Any other may have been deleted to make room. So may a collection: one whose students are all
    done needs nothing.
    """
    left = [job for job in jobs if job.name not in done]
    needed = {name for job in jobs for name in job.needs}
    needed_still = {name for job in left for name in job.needs}
    lacking = {job.name: job for job in jobs if job.name in done and job.lacks_checkpoint}
    for job in left:
        of_use = job.name in needed_still or job.name not in needed
        for name in job.needs:
            if of_use and name in lacking:
                raise UserError(
                    f"{lacking[name].latest} is missing, and {job.name} needs it; put it back, or "
                    f"remove {lacking[name].folder} to have it made again"
                )


def begin(job: Job, notes: Mapping[str, Note]) -> Note:
    """What is known of a job as it starts: as it was left, or from the beginning."""
    note = notes.get(job.name) or Note(_as_json(job.settings), begun=secrets.token_hex(8))
    return replace(
        note,
        # What was not known when it was begun may be by now.
        inputs={**_as_json(job.inputs), **note.inputs},
        done=False,
        sources={name: notes[name].begun for name in job.sources},
    )


def _read(job: Job) -> Note | None:
    """None for a job that was never begun, or that is to be made again, as other than it was.

    That is an evaluation, and a training that has saved nothing: its inputs may have been mended.

    Raises:
        UserError: the folder holds a training of other settings or inputs, or its note is damaged.
    """
    path = job.folder / _FILE
    if not path.exists():
        return None
    try:
        found = dict(json.loads(path.read_text(encoding="utf-8")))
        note = Note(**{name: value for name, value in found.items() if name in _KNOWN})
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: cannot be read: {error}; remove {job.folder}") from error
    settings, inputs = _as_json(job.settings), _as_json(job.inputs)
    changed = [*_changed(note.settings, settings), *_replaced(note.inputs, inputs)]
    if not changed:
        return note
    saved_nothing = job.latest is not None and job.checkpoint() is None
    if job.remade or (saved_nothing and not note.done):
        return None
    name, before, now = changed[0], note.settings | note.inputs, settings | inputs
    raise UserError(
        f"{job.folder} was made with {name} {_told(before, name)}, now it is "
        f"{_told(now, name)}; remove that folder, or name another output:"
    )


def write_note(job: Job, note: Note) -> None:
    """Keep what is known of a job beside what it makes."""
    make_folder(job.folder)
    write_atomically(job.folder / _FILE, json_bytes(asdict(note)))


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings or inputs as they come back from a file."""
    found: dict[str, Any] = json.loads(json_bytes(dict(values)))
    return found


def _replaced(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Inputs whose contents are others: of those that are known of both, in order."""
    return sorted(name for name in before.keys() & now.keys() if before[name] != now[name])


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Settings that differ, in order.

    Not those that only the note has, which count for nothing now; nor those that it lacks, of an
    option that came later, at their default.
    """
    old, defaults = _wherever(before), DstillOptions().flat()
    return sorted(
        name
        for name, value in _wherever(now).items()
        if (old[name] if name in old else defaults.get(name, _NOTHING)) != value
    )


def _wherever(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with paths of ours as they are below the output folder, which may be moved."""
    own = {k: _BELOW.sub("", settings[k]) for k in _PATHS if isinstance(settings.get(k), str)}
    return {**settings, **own}


def _told(settings: dict[str, Any], name: str) -> str:
    value = settings.get(name, _NOTHING)
    return "unset" if value is _NOTHING else json.dumps(value, ensure_ascii=False)
