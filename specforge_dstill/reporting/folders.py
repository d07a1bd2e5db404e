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

RESULTS, SERVERS = "results.json", "servers.json"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Results:
    """What lies in one folder; None for what does not.

    Attributes:
        name: the folder as it was given.
    """

    name: str
    report: Report | None
    serving: ServingReport | None


def read_folders(folders: Sequence[Path]) -> list[Results]:
    """Results in the order given. Errors: ``UserError`` for a folder without any, or twice."""
    seen: dict[Path, Path] = {}
    for folder in folders:
        before = seen.setdefault(folder.resolve(), folder)
        if before is not folder:
            raise UserError(f"{folder}: is given twice; a run counts once")
    return [_read(folder) for folder in folders]


def _read(folder: Path) -> Results:
    found = Results(
        str(folder),
        _parsed(folder / RESULTS, report_from_json),
        _parsed(folder / SERVERS, serving_from_json),
    )
    if found.report is None and found.serving is None:
        raise UserError(
            f"{folder}: holds neither {RESULTS} nor {SERVERS}; name the --output folder of "
            "specforge-dstill evaluate"
        )
    return found


def _parsed(path: Path, parse: Callable[[str], _T]) -> _T | None:
    if not path.is_file():
        return None
    try:
        with reading(path):
            return parse(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read: {error}; evaluate again to mend it") from error
