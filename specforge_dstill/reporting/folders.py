"""Folders of results, read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.report import Report, report_from_json
from specforge_dstill.evaluation.serving import ServingReport, serving_from_json
from specforge_dstill.files import reading

#: By replay, by decoding, and against servers.
RESULTS, DECODING, SERVERS = "results.json", "decoding.json", "servers.json"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Results:
    """What lies in one folder.

    Attributes:
        name: the folder as it was given.
        reports: of replay and of decoding, those that there are.
        serving: None where there is none.
    """

    name: str
    reports: tuple[Report, ...] = ()
    serving: ServingReport | None = None


def read_folders(folders: Sequence[Path]) -> list[Results]:
    """Results in the order given. Raises: ``UserError`` for a folder without any, or twice."""
    seen: dict[Path, Path] = {}
    for folder in folders:
        before = seen.setdefault(folder.resolve(), folder)
        if before is not folder:
            raise UserError(f"{folder}: is given twice; a run counts once")
    return [_read(folder) for folder in folders]


def _read(folder: Path) -> Results:
    reports = [_parsed(folder / name, report_from_json) for name in (RESULTS, DECODING)]
    serving = _parsed(folder / SERVERS, serving_from_json)
    found = Results(str(folder), tuple(filter(None, reports)), serving)
    if not found.reports and found.serving is None:
        raise UserError(
            f"{folder}: holds none of {RESULTS}, {DECODING} and {SERVERS}; name the --output "
            "folder of specforge-dstill evaluate"
        )
    return found


def _parsed(path: Path, parse: Callable[[str], _T]) -> _T | None:
    if not path.is_file():
        return None
    try:
        with reading(path):
            return parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: cannot be read: {error}; evaluate again to mend it") from error
