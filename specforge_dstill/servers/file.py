"""``servers.json``, which successive commands extend: without a drafter first, then with one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specforge_dstill.data.settings import differences
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.serving import Served, ServingReport, serving_from_json
from specforge_dstill.evaluation.speed import PLAIN
from specforge_dstill.files import make_folder, reading, write_atomically
from specforge_dstill.servers.load_point import LoadPoint

#: Details that gather what every command brings; the last command's count.
_GATHERED = ("prompts", "servers")
#: What files of earlier versions do not tell of a server.
_TOLD_LATER = {"quantization"}
_ONLY_RECORDED = (*_GATHERED, "date", "cache", "note")


class ServersFile:
    """Cells measured with the same settings; written after each.

    Args:
        details: those of :class:`ServingReport`, with ``hash`` for each of ``prompts`` and, by the
            drafter's name, each of ``servers``: its ``url`` and all that it tells of itself.

    Raises:
        UserError: the file holds cells measured with other settings, or against a server that told
            other things of itself, or cannot be read.
    """

    def __init__(self, path: Path, details: Mapping[str, Any]) -> None:
        self._path = path
        self._details = json.loads(json.dumps(details))
        self._check(self.report)

    @property
    def report(self) -> ServingReport:
        """What is there now; others' cells, too, if several commands write at once."""
        if not self._path.is_file():
            return ServingReport((), self._details)
        try:
            with reading(self._path):
                return serving_from_json(self._path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(
                f"{self._path}: cannot be read ({error}); delete it or choose another folder with "
                "--output"
            ) from error

    def has(self, cell: LoadPoint) -> bool:
        """Whether a cell was measured."""
        return _key(cell, cell.sampling.temperature) in {
            _key(one, one.temperature) for one in self.report.served
        }

    @property
    def details(self) -> dict[str, Any]:
        """The last command's, with the prompts and servers of all."""
        return self._gathered(self.report)

    def add(self, served: Served) -> None:
        """Keep a cell. Raises: ``UserError`` when the file system refuses."""
        held = self.report
        report = ServingReport((*held.served, served), self._gathered(held))
        make_folder(self._path.parent)
        write_atomically(self._path, report.to_json().encode())

    def _gathered(self, held: ServingReport) -> dict[str, Any]:
        gathered = {
            name: {**held.details.get(name, {}), **self._details.get(name, {})}
            for name in _GATHERED
        }
        return {**self._details, **gathered}

    def _check(self, report: ServingReport) -> None:
        held = report.details
        changed = [differences(held, self._details, ignored=_ONLY_RECORDED)]
        for name, asked in self._details["prompts"].items():
            before = held["prompts"].get(name, asked)
            if before["hash"] != asked["hash"]:
                changed.append(
                    f"{name} was {before['count']} prompts and is now {asked['count']}, or others"
                )
        changed += self._other_servers(report)
        if any(changed):
            raise UserError(
                f"{self._path}: holds what was measured with other settings "
                f"({'; '.join(filter(None, changed))}); choose another folder with --output"
            )

    def _other_servers(self, report: ServingReport) -> Iterator[str]:
        """Servers that cells were measured on and that are others now, wherever they run."""
        measured = {one.drafter or PLAIN for one in report.served}
        for name, now in self._details["servers"].items():
            before = report.details["servers"].get(name)
            if name in measured and before is not None:
                untold = _TOLD_LATER - {*before}
                changed = differences(before, now, ignored=("url", *untold))
                if changed:
                    yield f"the server of {name}: {changed}"


def _key(one: LoadPoint | Served, temperature: float) -> tuple[str | None, str, float, int]:
    return one.drafter, one.data_set, temperature, one.concurrency
