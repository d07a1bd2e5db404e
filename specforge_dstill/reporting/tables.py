"""Tables and sections as data, apart from how they are written."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from specforge_dstill.evaluation.intervals import Estimate, Interval
from specforge_dstill.table import NOTHING


@dataclass(frozen=True)
class Number:
    """A cell with a measured number.

    Attributes:
        suffix: such as × or %.
        signed: with a plus, too.
    """

    estimate: Estimate
    suffix: str = ""
    signed: bool = False

    @property
    def text(self) -> str:
        """The number alone."""
        value = self.estimate.value
        if not isfinite(value):
            return NOTHING
        return f"{self._rounded(value)}{self.suffix}"

    @property
    def intervals(self) -> tuple[str, ...]:
        """Over prompts in square brackets, over runs in braces; those that there are."""
        found = (("[", self.estimate.over_prompts, "]"), ("{", self.estimate.over_runs, "}"))
        return tuple(
            f"{left}{self._inside(interval)}{right}"
            for left, interval, right in found
            if interval is not None
        )

    def _inside(self, interval: Interval) -> str:
        return f"{self._rounded(interval.low)}, {self._rounded(interval.high)}"

    def _rounded(self, value: float) -> str:
        # A minus sign is as wide as a plus; a rounded zero has neither.
        text = f"{value:+.2f}" if self.signed else f"{value:.2f}"
        return "0.00" if float(text) == 0 else text.replace("-", "−")


Cell = str | Number


def cell_text(cell: Cell) -> str:
    """A cell in one line, a number with its intervals."""
    return " ".join((cell.text, *cell.intervals)) if isinstance(cell, Number) else cell


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        names: how many columns at the left are names, not numbers.
        notes: sentences under it.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    names: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        svg: the element, to stand in a page.
    """

    title: str
    svg: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What was measured, on what, when and how: names and values."""

    title: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Page:
    """All of a report, in order."""

    title: str
    facts: tuple[Facts, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
