"""Which evaluations belong together: those of one setting, which differ in their checkpoints alone.

A method that is in several of them (other seeds) has several runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, product
from string import ascii_uppercase
from typing import Any

from specforge_dstill.evaluation.report import Report, Score

#: Settings that may differ between runs that are averaged.
OF_A_RUN = (
    *("run_file", "overrides", "draft_config", "checkpoints", "seed", "prompts", "left_out"),
    *("date", "versions", "cache", "servers"),
)


@dataclass(frozen=True, order=True)
class Method:
    """A drafter at a number of passes."""

    drafter: str
    steps: int

    def __str__(self) -> str:
        return self.drafter if self.steps == 1 else f"{self.drafter}, {self.steps} passes"


@dataclass(frozen=True)
class Setting:
    """Evaluations that differ in their drafters' checkpoints alone.

    Attributes:
        reports: by the number of their folder, so that a run has one number everywhere.
        letter: its name on the page; "" for the only one.
    """

    reports: Mapping[int, Report]
    letter: str = ""

    @property
    def first(self) -> Report:
        return next(iter(self.reports.values()))

    @property
    def details(self) -> Mapping[str, Any]:
        """Those of the first evaluation."""
        return self.first.details

    @property
    def suffix(self) -> str:
        """What its titles end with."""
        return f", setting {self.letter}" if self.letter else ""

    @property
    def target(self) -> str:
        return str(self.details.get("target", "target"))

    @property
    def temperature(self) -> float:
        return float(self.details.get("temperature", 0.0))

    @property
    def reasoning(self) -> str:
        """What the chat template was told."""
        return template_text(self.details.get("template_kwargs", {}))

    @property
    def data_sets(self) -> tuple[str, ...]:
        return self.first.data_sets

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        """In the order in which they were given."""
        found = [Method(s.drafter, s.steps) for r in self.reports.values() for s in r.scores]
        return tuple(dict.fromkeys(found))

    def runs(self, method: Method) -> dict[int, Score]:
        """The scores of a method."""
        key = (method.drafter, method.steps)
        return {
            run: score
            for run, report in self.reports.items()
            for score in report.scores
            if (score.drafter, score.steps) == key
        }

    def parameters(self, method: Method) -> int | None:
        """A drafter's own, embeddings and head not counted; None where results do not tell."""
        found = self.details.get("checkpoints", {}).get(method.drafter, {}).get("parameters")
        return None if found is None else int(found)

    def has_speed(self, method: Method) -> bool:
        """Whether S was measured in every run."""
        runs = self.runs(method)
        return bool(runs) and all(
            score.speed is not None and self.reports[run].plain is not None
            for run, score in runs.items()
        )


def settings_of(reports: Iterable[tuple[int, Report]]) -> list[Setting]:
    """Reports, each with its folder's number, by setting in the order given.

    Reports without a score are left out.
    """
    groups: dict[str, Setting] = {}
    for number, report in reports:
        if not report.scores:
            continue
        key = _key(report)
        before = groups.get(key, Setting({}))
        groups[key] = replace(before, reports={**before.reports, number: report})
    if len(groups) == 1:
        return list(groups.values())
    return [
        replace(setting, letter=letter)
        for setting, letter in zip(groups.values(), _letters(), strict=False)
    ]


def _letters() -> Iterator[str]:
    """A, B, … Z, AA, AB, …"""
    for length in count(1):
        yield from map("".join, product(ascii_uppercase, repeat=length))


def _key(report: Report) -> str:
    details = {k: v for k, v in report.details.items() if k not in OF_A_RUN}
    prompts = {name: [w.name for w in walks] for name, walks in report.scores[0].walks.items()}
    return json.dumps([details, report.block_size, prompts], sort_keys=True, default=str)


def template_text(kwargs: Mapping[str, Any]) -> str:
    """Options of a chat template in words."""
    told = [f"{name} = {json.dumps(value)}" for name, value in kwargs.items()]
    return ", ".join(told) or "the template's default"
