"""Measurements over temperatures and concurrencies, from servers or decoded one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specforge_dstill.evaluation.intervals import Quantity
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.settings import Method


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
    """Cells of one target, engine and reasoning setting.

    Attributes:
        tau, speedup: only where measured.
        rates: by method, temperature and concurrency, all runs together; the server alone is
            method None.
        details: those of the first run.
        runs: the folders' numbers.
        warnings: what may mislead.
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
    """Settings that differ in temperature, side by side; each request alone (C = 1)."""
    groups: dict[tuple[str, str], list[Quantities]] = {}
    for quantities in all_quantities:
        setting = quantities.setting
        if any(map(setting.has_speed, setting.methods)):
            groups.setdefault((setting.target, setting.reasoning), []).append(quantities)
    for (target, reasoning), group in groups.items():
        temperatures = {quantities.setting.temperature for quantities in group}
        if len(temperatures) < 2 or len(temperatures) < len(group):
            continue
        places = {
            Place(data_set, method, quantities.setting.temperature, 1): quantities
            for quantities in group
            for data_set in quantities.setting.data_sets
            for method in quantities.setting.methods
            if quantities.setting.has_speed(method)
        }
        yield SpeedGrid(
            target,
            "transformers",
            reasoning,
            {place: q.tau(place.method, place.data_set) for place, q in places.items()},
            {place: q.speedup(place.method, place.data_set) for place, q in places.items()},
        )
