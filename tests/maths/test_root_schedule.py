"""The root probability over training (Eq. 9) and the draw of a state (Appendix 8.3)."""

from __future__ import annotations

from itertools import pairwise
from math import cos, pi, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specforge_dstill.maths.root_schedule import RootSchedule, draw_states
from tests.maths.generators import seeded


def test_the_curve_by_hand() -> None:
    schedule = RootSchedule()
    # Flat at 0.5 until 0.1 and at 0.85 from 0.7. Between them half a cosine: a quarter of the
    # way is (1 - cos(pi/4)) / 2 = 0.1464466 of the rise of 0.35, half way is half of it.
    assert schedule.p_root(0.0) == schedule.p_root(0.1) == 0.5
    assert schedule.p_root(0.25) == pytest.approx(0.5512563, abs=1e-7)
    assert schedule.p_root(0.4) == pytest.approx(0.675, abs=1e-12)
    assert schedule.p_root(0.7) == schedule.p_root(1.0) == 0.85


def test_the_average_over_training_is_the_figure_in_the_paper() -> None:
    # 0.1 * 0.5 + 0.6 * (0.5 + 0.85) / 2 + 0.3 * 0.85 = 0.05 + 0.405 + 0.255 = 0.71.
    schedule = RootSchedule()
    points = 100_000
    average = sum(schedule.p_root((n + 0.5) / points) for n in range(points)) / points
    assert abs(average - 0.71) < 0.005  # as the paper prints it
    assert average == pytest.approx(0.71, abs=1e-6)  # the midpoint rule is finer than that


def test_progress_is_clamped() -> None:
    for schedule in (RootSchedule(), RootSchedule(warmup=0.0, cooldown=0.0)):
        assert schedule.p_root(-0.5) == schedule.p_root(0.0) == 0.5
        assert schedule.p_root(1.5) == schedule.p_root(1.0) == 0.85


@st.composite
def schedules(draw: st.DrawFn) -> RootSchedule:
    warmup = draw(st.floats(0, 0.5))
    return RootSchedule(
        start=draw(st.floats(0, 1)),
        end=draw(st.floats(0, 1)),
        warmup=warmup,
        cooldown=draw(st.floats(0, 0.95 - warmup)),
    )


@given(schedules(), st.floats(-0.5, 1.5))
def test_against_the_formula(schedule: RootSchedule, progress: float) -> None:
    w, c = schedule.warmup, schedule.cooldown
    if progress <= w:
        expected = schedule.start
    elif progress >= 1 - c:
        expected = schedule.end
    else:
        rise = (1 - cos(pi * (progress - w) / (1 - w - c))) / 2
        expected = schedule.start + (schedule.end - schedule.start) * rise
    assert schedule.p_root(progress) == pytest.approx(expected, abs=1e-12)


@given(schedules(), st.floats(0, 1), st.floats(0, 1))
def test_the_curve_moves_one_way_between_its_ends(
    schedule: RootSchedule, one: float, other: float
) -> None:
    early, late = schedule.p_root(min(one, other)), schedule.p_root(max(one, other))
    rising = schedule.end >= schedule.start
    path = [schedule.start, early, late, schedule.end]
    # 1e-12 allows for the rounding of the cosine near the ends.
    for here, there in pairwise(path):
        assert (there - here) * (1 if rising else -1) >= -1e-12


@pytest.mark.parametrize(
    ("field", "value"),
    [("start", -0.1), ("end", 1.1), ("warmup", -0.1), ("cooldown", -0.1), ("cooldown", 0.9)],
)
def test_an_impossible_schedule_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=r"p_root|warmup"):
        RootSchedule(**{field: value})


def commit_pass(*last: int, count: int = 1) -> torch.Tensor:
    """``count`` copies of blocks whose latest commit pass is given; three positions each."""
    return torch.tensor([[0, k, 1] for k in last]).repeat_interleave(count, dim=0)


def test_the_root_share_is_p_root() -> None:
    count = 20_000
    for p_root in (0.5, 0.85):
        states = draw_states(commit_pass(8, count=count), p_root=p_root, generator=seeded(1))
        found = float((states == 1).float().mean())
        # Five standard deviations of a share of independent draws.
        assert abs(found - p_root) < 5 * sqrt(p_root * (1 - p_root) / count)


@pytest.mark.parametrize("last", [2, 3, 8, 15])
def test_later_states_are_uniform(last: int) -> None:
    # The loop over Appendix 8.3's distribution: 0.3 at the root, 0.7 shared by 2..last.
    count = 20_000
    states = draw_states(commit_pass(last, count=count), p_root=0.3, generator=seeded(2))
    found = states.bincount(minlength=last + 1)
    assert found[0] == 0
    assert len(found) == last + 1  # never past the last pass: that input would be the endpoint
    for t in range(1, last + 1):
        probability = 0.3 if t == 1 else 0.7 / (last - 1)
        sigma = sqrt(count * probability * (1 - probability))
        assert abs(float(found[t]) - count * probability) < 5 * sigma, t


@given(st.lists(st.integers(1, 15), min_size=1, max_size=8), st.floats(0, 1), st.integers(0, 1000))
def test_a_state_has_something_left_to_predict(last: list[int], p: float, seed: int) -> None:
    passes = commit_pass(*last)
    states = draw_states(passes, p_root=p, generator=seeded(seed))
    assert states.shape == (len(last),)
    assert states.dtype == torch.int64
    assert (states >= 1).all()
    assert (states <= passes.amax(dim=1)).all()
    torch.rand(2)  # the global source of randomness plays no part
    assert torch.equal(states, draw_states(passes, p_root=p, generator=seeded(seed)))


def test_certain_probabilities() -> None:
    passes = commit_pass(5, count=500)
    assert (draw_states(passes, p_root=1.0, generator=seeded(3)) == 1).all()
    assert (draw_states(passes, p_root=0.0, generator=seeded(3)) >= 2).all()


def test_a_block_committed_in_one_pass_stays_at_the_root() -> None:
    states = draw_states(commit_pass(1, count=500), p_root=0.0, generator=seeded(4))
    assert (states == 1).all()


def test_no_block() -> None:
    none = torch.zeros(0, 16, dtype=torch.int64)
    states = draw_states(none, p_root=0.5, generator=seeded(5))
    assert states.shape == (0,)
    assert states.dtype == torch.int64
