"""What a job's folder says of it: with which settings it was begun, and whether it is done."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from specforge_dstill.ablations.jobs import Job
from specforge_dstill.errors import UserError
from specforge_dstill.files import json_bytes, make_folder, write_atomically

_FILE = "job.json"
_NOTHING = object()


@dataclass(frozen=True)
class Note:
    """Of one job.

    Attributes:
        seconds: it took, all starts together.
    """

    settings: dict[str, Any]
    seconds: float = 0.0
    done: bool = False


def read_note(job: Job) -> Note | None:
    """None for a job that was never begun, or that is to be made again for its other settings.

    Raises:
        UserError: the folder holds a training of other settings, or its note is damaged.
    """
    path = job.folder / _FILE
    if not path.exists():
        return None
    try:
        note = Note(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: cannot be read: {error}; remove {job.folder}") from error
    wanted = _as_json(job)
    if note.settings == wanted:
        return note
    if job.remade:
        return None
    names = sorted({*note.settings, *wanted})
    name = next(n for n in names if _of(note.settings, n) != _of(wanted, n))
    raise UserError(
        f"{job.folder} was made with {name} {_told(note.settings, name)}, now it is "
        f"{_told(wanted, name)}; remove that folder and those of the variants that start from it, "
        "or name another output:"
    )


def write_note(job: Job, *, seconds: float, done: bool) -> None:
    """Keep what is known of a job beside what it makes."""
    make_folder(job.folder)
    note = Note(_as_json(job), seconds, done)
    write_atomically(job.folder / _FILE, json_bytes(asdict(note)))


def _as_json(job: Job) -> dict[str, Any]:
    """Settings as they come back from a file."""
    found: dict[str, Any] = json.loads(json_bytes(dict(job.settings)))
    return found


def _of(settings: dict[str, Any], name: str) -> Any:
    return settings.get(name, _NOTHING)


def _told(settings: dict[str, Any], name: str) -> str:
    value = _of(settings, name)
    return "unset" if value is _NOTHING else json.dumps(value, ensure_ascii=False)
