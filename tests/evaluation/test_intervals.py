"""Intervals over prompts and over runs: by hand, against a loop, and where there are none."""

from __future__ import annotations

from math import isnan, nan

import numpy as np
import pytest

from specforge_dstill.evaluation.intervals import (
    Quantity,
    average,
    combine,
    percentile_interval,
    ratio_of_sums,
    resampling,
    t_interval,
)


def generator() -> np.random.Generator:
    return np.random.default_rng(5)


def test_the_first_row_counts_each_prompt_once_and_every_row_counts_as_many() -> None:
    weights = resampling(7, draws=50, generator=generator())
    assert weights.shape == (51, 7)
    assert (weights[0] == 1).all()
    assert (weights.sum(axis=1) == 7).all()
    assert (weights[1:] == resampling(7, draws=50, generator=generator())[1:]).all()


def test_ratios_against_a_loop_over_the_drawn_prompts() -> None:
    top = np.array([[3.0, 8, 1, 0], [2, 2, 2, 2]])
    bottom = np.array([[1.0, 2, 1, 3], [1, 1, 2, 4]])
    weights = resampling(4, draws=30, generator=generator())
    found = ratio_of_sums(weights, top, bottom)
    for run in range(2):
        for draw, counts in enumerate(weights):
            drawn = [unit for unit in range(4) for _ in range(int(counts[unit]))]
            above, below = sum(top[run, u] for u in drawn), sum(bottom[run, u] for u in drawn)
            assert found[run, draw] == pytest.approx(above / below)
    assert found[0, 0] == 12 / 7


def test_a_sum_of_zero_below_gives_no_number_and_no_interval() -> None:
    weights = resampling(2, draws=40, generator=generator())
    values = ratio_of_sums(weights, np.array([[1.0, 0]]), np.array([[1.0, 0]]))
    assert values[0, 0] == 1
    assert np.isnan(values).any(), "a resample of the second prompt alone"
    assert Quantity((0,), values).estimate().over_prompts is None


@pytest.mark.parametrize("units", [0, 1])
def test_too_few_prompts_for_an_interval(units: int) -> None:
    weights = resampling(units, draws=5, generator=generator())
    counts = np.ones((1, units))
    estimate = Quantity((0,), ratio_of_sums(weights, 2 * counts, counts)).estimate()
    assert estimate.over_prompts is None
    assert isnan(estimate.value) if units == 0 else estimate.value == 2


def test_the_percentile_interval_by_hand() -> None:
    found = percentile_interval(np.arange(201.0))
    assert found is not None
    assert (found.low, found.high) == pytest.approx((5, 195))
    assert percentile_interval(np.array([])) is None
    assert percentile_interval(np.array([1.0, nan])) is None


def test_the_interval_over_runs_by_hand() -> None:
    # Mean 2, standard deviation 1, three runs: 4.303 / sqrt(3).
    found = t_interval(np.array([1.0, 2, 3]))
    assert found is not None
    assert (found.low, found.high) == pytest.approx((2 - 2.4843, 2 + 2.4843), abs=1e-4)
    assert t_interval(np.array([1.0])) is None
    wide, narrow = t_interval(np.arange(21.0)), t_interval(np.arange(60.0) % 21)
    assert wide is not None
    assert narrow is not None
    assert narrow.high - narrow.low < wide.high - wide.low


def test_differences_are_paired_by_prompt() -> None:
    # The second method is better by one on every prompt; prompts themselves differ a lot.
    ones = np.ones((1, 30))
    first = np.arange(30.0)[None]
    weights = resampling(30, draws=200, generator=generator())
    a = Quantity((0,), ratio_of_sums(weights, first, ones))
    b = Quantity((0,), ratio_of_sums(weights, first + 1, ones))
    apart = combine(lambda x, y: y - x, a, b).estimate()
    assert apart.over_prompts is not None
    assert (apart.over_prompts.low, apart.over_prompts.high) == pytest.approx((1, 1))
    alone = a.estimate().over_prompts
    assert alone is not None
    assert alone.high - alone.low > 3


def test_runs_are_matched_and_what_has_none_in_common_is_averaged() -> None:
    a = Quantity((0, 1, 2), np.array([[1.0], [2], [3]]))
    b = Quantity((2, 0), np.array([[30.0], [10]]))
    both = combine(average, a, b)
    assert both.runs == (0, 2)
    assert both.values.tolist() == [[5.5], [16.5]]
    c = Quantity((7,), np.array([[12.0]]))
    apart = combine(lambda x, y: y - x, a, c)
    assert apart.values.tolist() == [[10]]
    assert apart.estimate().over_runs is None
    assert apart.estimate().runs == 1


def test_coverage_is_near_what_is_said() -> None:
    # 95 % of intervals from 60 exponential prompts hold the true mean, within what chance allows.
    source, held = generator(), 0
    for _ in range(200):
        values = source.exponential(size=(1, 60))
        weights = resampling(60, draws=200, generator=source)
        found = percentile_interval(ratio_of_sums(weights, values, np.ones((1, 60)))[0, 1:])
        assert found is not None
        held += found.low <= 1 <= found.high
    assert 175 <= held <= 199
