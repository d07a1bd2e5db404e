"""Which evaluations belong together: those of one setting, which differ in their checkpoints alone.

A method that is in several of them (other seeds) has several runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice, product
from string import ascii_uppercase
from typing import Any, TypeVar

from specforge_dstill.evaluation.report import Report, Score
from specforge_dstill.evaluation.serving import ServingReport

#: Settings that may differ between runs that are averaged; of prompts all but what they ask.
_OF_A_RUN = (
    *("run_file", "overrides", "draft_config", "checkpoints", "seed", "prompts", "left_out"),
    *("date", "versions", "cache", "servers", "note", "generation_config_unheeded"),
)
_Report = TypeVar("_Report", Report, ServingReport)


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
    groups = grouped([(number, one) for number, one in reports if one.scores], also=_shape)
    return [Setting(*pair) for pair in zip(groups, letters(len(groups)), strict=True)]


def letters(count: int, *, after: int = 0) -> list[str]:
    """What settings are called on a page, which has named ``after`` others; "" for one alone."""
    return [""] if count == 1 else list(islice(_letters(), after, after + count))


def asked(report: Report | ServingReport) -> dict[str, str]:
    """A hash of each data set's prompts, where it is told."""
    prompts = report.details.get("prompts", {})
    return {name: told["hash"] for name, told in prompts.items() if "hash" in told}


def grouped(
    reports: Iterable[tuple[int, _Report]],
    *,
    also: Callable[[_Report], object] = lambda _: None,
    ignored: Collection[str] = (),
    agreeing: Callable[[_Report], Mapping[str, str]] = asked,
) -> list[dict[int, _Report]]:
    """Reports, each with its folder's number, that have equal settings and asked the same.

    Results of earlier versions do not tell what they asked, and join those that do.

    Args:
        also: what must be equal besides, a JSON value.
        ignored: settings that may differ besides those of a run.
        agreeing: what must be equal where both tell it.
    """
    groups: list[tuple[str, dict[str, str], dict[int, _Report]]] = []
    may_differ = {*_OF_A_RUN, *ignored}
    for number, report in reports:
        equal = {name: of for name, of in report.details.items() if name not in may_differ}
        key = json.dumps([equal, also(report)], sort_keys=True, default=str)
        told = agreeing(report)
        group = next((g for g in groups if g[0] == key and _agree(g[1], told)), None)
        if group is None:
            group = key, {}, {}
            groups.append(group)
        group[1].update(told)
        group[2][number] = report
    return [members for _, _, members in groups]


def _agree(known: Mapping[str, str], told: Mapping[str, str]) -> bool:
    return all(known.get(name, value) == value for name, value in told.items())


def _letters() -> Iterator[str]:
    """A, B, … Z, AA, AB, …"""
    for length in count(1):
        yield from map("".join, product(ascii_uppercase, repeat=length))


def _shape(report: Report) -> object:
    """The size of a block, and which turns were answered."""
    turns = {name: [w.name for w in walks] for name, walks in report.scores[0].walks.items()}
    return [report.block_size, turns]


def template_text(kwargs: Mapping[str, Any]) -> str:
    """Options of a chat template in words."""
    told = [f"{name} = {json.dumps(value)}" for name, value in kwargs.items()]
    return ", ".join(told) or "the template's default"
