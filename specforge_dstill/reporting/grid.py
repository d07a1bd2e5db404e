"""Measurements over temperatures and concurrencies, from servers or decoded one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specforge_dstill.evaluation.intervals import Quantity
from specforge_dstill.evaluation.report import Report
from specforge_dstill.reporting.prompts import prompt_of
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.settings import Method, asked, grouped

#: How tokens are drawn at a temperature above 0.
_WAY = ("rule", "top_p", "top_k")


@dataclass(frozen=True, order=True)
class Place:
    """What a cell is of."""

    data_set: str
    method: Method
    temperature: float
    concurrency: int


@dataclass(frozen=True)
class Rate:
    """Of all requests to those data sets that every method of the same column has.

    Attributes:
        throughput: output tokens a second.
        per_token: seconds of a request per output token.
        data_sets: which they are; without any, both numbers are NaN.
    """

    throughput: float
    per_token: float
    data_sets: tuple[str, ...] = ()


@dataclass(frozen=True)
class SpeedGrid:
    """Cells that were measured alike but for drafters, temperatures and concurrencies.

    Attributes:
        tau, speedup: only where measured.
        rates: by method, temperature and concurrency, all runs together; the server alone is
            method None.
        details: those of the first run.
        runs: the folders' numbers.
        warnings: what may mislead.
        settings: the letters of what it is of, by temperature; none for the only one.
    """

    target: str
    engine: str
    reasoning: str
    tau: Mapping[Place, Quantity]
    speedup: Mapping[Place, Quantity]
    rates: Mapping[tuple[Method | None, float, int], Rate] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    runs: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def suffix(self) -> str:
        """What its titles end with."""
        if not self.settings:
            return ""
        word = "settings" if len(self.settings) > 1 else "setting"
        return f", {word} {', '.join(self.settings)}"

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(dict.fromkeys((*self.speedup, *self.tau)))

    @property
    def data_sets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place.data_set for place in self.places))

    @property
    def methods(self) -> tuple[Method, ...]:
        return tuple(dict.fromkeys(place.method for place in self.places))

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(sorted({place.temperature for place in self.places}))

    @property
    def concurrencies(self) -> tuple[int, ...]:
        return tuple(sorted({place.concurrency for place in self.places}))


def decoded_grids(all_quantities: Sequence[Quantities]) -> Iterator[SpeedGrid]:
    """Settings that differ in how they sample, by temperature; each request alone (C = 1).

    Greedy decoding stands beside every way of sampling.
    """
    timed = [q for q in all_quantities if any(map(q.setting.has_speed, q.setting.methods))]
    groups = grouped(
        [(number, quantities.setting.first) for number, quantities in enumerate(timed)],
        also=lambda report: report.block_size,
        ignored=("temperature", "seed", *_WAY),
        agreeing=_prompts,
    )
    for group in groups:
        for columns in _by_temperature([timed[number] for number in group]):
            yield _decoded_grid(columns)


def _prompts(report: Report) -> dict[str, str]:
    """Which those of each data set were; a prompt's later turns may be missing."""
    names = {
        data_set: sorted({*prompt_of([walk.name for walk in walks]).values()})
        for data_set, walks in report.scores[0].walks.items()
    }
    return {**asked(report), **{f"names of {name}": repr(one) for name, one in names.items()}}


def _by_temperature(group: Sequence[Quantities]) -> Iterator[dict[float, Quantities]]:
    """Of each way of sampling, where there are two temperatures or more."""
    ways: dict[object, dict[float, Quantities]] = {}
    for quantities in group:
        way = tuple(quantities.setting.details.get(name) for name in _WAY)
        ways.setdefault(way, {}).setdefault(quantities.setting.temperature, quantities)
    greedy = next(({0.0: columns[0.0]} for columns in ways.values() if 0.0 in columns), {})
    for columns in ways.values():
        if len({**greedy, **columns}) > 1:
            yield {**greedy, **columns}


def _decoded_grid(columns: Mapping[float, Quantities]) -> SpeedGrid:
    settings = [columns[temperature].setting for temperature in sorted(columns)]
    places = {
        Place(data_set, method, temperature, 1): quantities
        for temperature, quantities in columns.items()
        for data_set in quantities.setting.data_sets
        for method in quantities.setting.methods
        if quantities.setting.has_speed(method)
    }
    return SpeedGrid(
        settings[0].target,
        "transformers",
        settings[0].reasoning,
        {place: q.tau(place.method, place.data_set) for place, q in places.items()},
        {place: q.speedup(place.method, place.data_set) for place, q in places.items()},
        settings=tuple(setting.letter for setting in settings),
    )
