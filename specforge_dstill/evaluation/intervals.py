"""Means with intervals: a bootstrap over prompts, and Student's t over runs (seeds).

A quantity carries, beside what was observed, what it comes to on R resamples of the prompts. All
quantities over the same prompts use the same resamples, so that plain arithmetic on them (averages,
differences, ratios) compares methods prompt by prompt.

Shapes: U prompts, R resamples, S runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan, sqrt

import numpy as np
from numpy.typing import NDArray

#: Resamples, and the share of them that lies inside an interval.
DRAWS, LEVEL = 2000, 0.95
#: The 97.5 % points of Student's t with 1, 2, … degrees of freedom; the last serves for more.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """From ``low`` to ``high``."""

    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A number to be shown.

    Attributes:
        value: the mean over runs.
        over_prompts: the bootstrap's percentile interval of that mean; None where there is none.
        over_runs: Student's t interval; None for a single run.
        runs: how many were averaged.
    """

    value: float
    over_prompts: Interval | None = None
    over_runs: Interval | None = None
    runs: int = 1


@dataclass(frozen=True)
class Quantity:
    """What was observed, and the same on resampled prompts.

    Attributes:
        runs: which runs the rows are of; empty where rows of different runs were averaged.
        values: [S, 1 + R]; column 0 was observed.
    """

    runs: tuple[int, ...]
    values: Array

    def estimate(self) -> Estimate:
        """Mean and intervals. An interval needs every resample to be a number."""
        observed, resampled = self.values[:, 0], self.values[:, 1:].mean(axis=0)
        return Estimate(
            value=float(observed.mean()) if len(observed) else nan,
            over_prompts=percentile_interval(resampled),
            over_runs=t_interval(observed),
            runs=len(observed),
        )


def resampling(units: int, *, draws: int, generator: np.random.Generator) -> Array:
    """How often each prompt counts: [1 + R, U], first once each, then as drawn with replacement.

    With fewer than two prompts nothing can be told of other prompts: those rows are NaN.
    """
    weights = np.ones((1 + draws, units))
    if units < 2:
        weights[1:] = nan
    else:
        weights[1:] = generator.multinomial(units, np.full(units, 1 / units), size=draws)
    return weights


def ratio_of_sums(weights: Array, top: Array, bottom: Array) -> Array:
    """Sum of ``top`` over sum of ``bottom``, both [S, U], on each resample: [S, 1 + R].

    NaN where the lower sum is 0.
    """
    # One product, which reads the weights once.
    above, below = np.split((weights @ np.concatenate([top, bottom]).T).T, 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(below == 0, nan, above / below)


def combine(function: Callable[..., Array], *quantities: Quantity) -> Quantity:
    """A function of quantities, formed run by run on the runs that they share.

    Quantities without a common run (variants that were measured apart) are averaged first; what
    comes of them then has no interval over runs.
    """
    shared = _shared_runs(quantities)
    return Quantity(shared, function(*(_rows(q, shared) for q in quantities)))


def of_means(function: Callable[..., Array], *quantities: Quantity) -> Estimate:
    """A function of means over the shared runs, where it is no mean itself: a ratio of averages.

    Its interval over runs is that of the function of each run's own values, where every run has
    one; it need not lie around the value.
    """
    shared = _shared_runs(quantities)
    means = (_rows(q, shared).mean(axis=0, keepdims=True) for q in quantities)
    estimate = Quantity(shared[:1], function(*means)).estimate()
    by_run = combine(function, *quantities).values[:, 0]
    return replace(estimate, over_runs=t_interval(by_run), runs=len(by_run))


def _shared_runs(quantities: Sequence[Quantity]) -> tuple[int, ...]:
    return tuple(run for run in quantities[0].runs if all(run in q.runs for q in quantities))


def _rows(quantity: Quantity, runs: Sequence[int]) -> Array:
    """Of these runs, [S, 1 + R]; of none the mean over all."""
    if not runs:
        return quantity.values.mean(axis=0, keepdims=True)
    return quantity.values[[quantity.runs.index(run) for run in runs]]


def average(*values: Array) -> Array:
    """The unweighted mean."""
    return np.mean(values, axis=0)


def percentile_interval(resampled: Array) -> Interval | None:
    """The middle ``LEVEL`` of the resamples; None without any, or with one that is no number."""
    if len(resampled) == 0 or not np.isfinite(resampled).all():
        return None
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def t_interval(values: Array) -> Interval | None:
    """Student's 95 % interval of the mean; None for fewer than two values."""
    count = len(values)
    if count < 2 or not np.isfinite(values).all():
        return None
    point = _T[count - 2] if count - 2 < len(_T) else _T[-1]
    half = point * float(values.std(ddof=1)) / sqrt(count)
    middle = float(values.mean())
    return Interval(middle - half, middle + half) if isfinite(half) else None
