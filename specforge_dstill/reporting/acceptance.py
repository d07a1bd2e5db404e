"""Acceptance as tables of variants see it: measured by us, or at one load of a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from specforge_dstill.evaluation.intervals import Quantity
from specforge_dstill.reporting.grid import Place, SpeedGrid
from specforge_dstill.reporting.settings import Method


class Acceptance(Protocol):
    """Tau of methods that were measured alike, all over the same resamples of prompts."""

    @property
    def methods(self) -> tuple[Method, ...]:
        """In the order in which they were given."""

    @property
    def suffix(self) -> str:
        """What the titles of its tables end with."""

    def shared(self, methods: Sequence[Method]) -> tuple[str, ...]:
        """The data sets that all of these have; none where one was not measured."""

    def tau(self, method: Method, data_set: str) -> Quantity:
        """Mean acceptance length."""


@dataclass(frozen=True)
class AtLoad:
    """Acceptance on servers, at one temperature with so many requests at a time."""

    grid: SpeedGrid
    temperature: float
    concurrency: int

    @property
    def methods(self) -> tuple[Method, ...]:
        return tuple(method for method in self.grid.methods if self.shared([method]))

    @property
    def suffix(self) -> str:
        grid = self.grid
        where = f"{grid.target} in {grid.engine}, {grid.reasoning}"
        return f", {where}, T = {self.temperature:g}, C = {self.concurrency}{grid.suffix}"

    def shared(self, methods: Sequence[Method]) -> tuple[str, ...]:
        return tuple(
            name
            for name in self.grid.data_sets
            if all(self._place(method, name) in self.grid.tau for method in methods)
        )

    def tau(self, method: Method, data_set: str) -> Quantity:
        return self.grid.tau[self._place(method, data_set)]

    def _place(self, method: Method, data_set: str) -> Place:
        return Place(data_set, method, self.temperature, self.concurrency)


def loads(grids: Sequence[SpeedGrid]) -> Iterator[AtLoad]:
    """Every load of every grid at which acceptance was measured."""
    for grid in grids:
        for temperature in grid.temperatures:
            for concurrency in grid.concurrencies:
                found = AtLoad(grid, temperature, concurrency)
                if found.methods:
                    yield found
