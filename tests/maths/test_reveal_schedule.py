"""How many positions a pass commits (Eq. 4) and the reveal levels that follow (Eq. 5)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specforge_dstill.maths.reveal_schedule import check_steps, commit_counts, reveal_levels


@st.composite
def blocks_and_steps(draw: st.DrawFn) -> tuple[int, int]:
    """Any valid pair (B, K): 1 <= K <= B - 1."""
    block_size = draw(st.integers(2, 200))
    return block_size, draw(st.integers(1, block_size - 1))


def test_sixteen_positions_in_eight_passes() -> None:
    # 15 positions are free: ceil(15/8) = 2, ceil(13/7) = 2, ceil(11/6) = 2, ceil(9/5) = 2,
    # ceil(7/4) = 2, ceil(5/3) = 2, ceil(3/2) = 2, ceil(1/1) = 1.
    assert commit_counts(16, 8) == (2, 2, 2, 2, 2, 2, 2, 1)
    # Before those passes 0, 2, 4, ..., 14 of the 15 positions are visible.
    assert reveal_levels(16, 8) == tuple(m / 15 for m in (0, 2, 4, 6, 8, 10, 12, 14))


def test_eight_positions_in_three_passes() -> None:
    # ceil(7/3) = 3, ceil(4/2) = 2, ceil(2/1) = 2.
    assert commit_counts(8, 3) == (3, 2, 2)
    assert reveal_levels(8, 3) == (0.0, 3 / 7, 5 / 7)


@pytest.mark.parametrize("block_size", [2, 3, 16])
def test_fewest_and_most_passes(block_size: int) -> None:
    assert commit_counts(block_size, 1) == (block_size - 1,)
    assert reveal_levels(block_size, 1) == (0.0,)
    assert commit_counts(block_size, block_size - 1) == (1,) * (block_size - 1)


@given(blocks_and_steps())
def test_every_pass_works_and_the_passes_fill_the_block(pair: tuple[int, int]) -> None:
    block_size, steps = pair
    counts = commit_counts(block_size, steps)
    assert len(counts) == steps
    assert sum(counts) == block_size - 1
    assert min(counts) >= 1
    # The ceiling spreads the positions as evenly as integers allow, larger passes first.
    assert list(counts) == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= 1


@given(blocks_and_steps())
def test_levels_rise_from_the_root_and_stay_below_one(pair: tuple[int, int]) -> None:
    levels = reveal_levels(*pair)
    assert levels[0] == 0.0
    assert all(low < high for low, high in pairwise(levels))
    assert levels[-1] < 1.0


def slow_counts_and_levels(block_size: int, steps: int) -> tuple[list[int], list[float]]:
    """Algorithm 1, lines 2, 10 and 15, with the set of committed positions written out."""
    committed = {0}
    counts, levels = [], []
    for t in range(1, steps + 1):
        levels.append((len(committed) - 1) / (block_size - 1))
        # -(-a // b) is the ceiling of a / b in integers.
        count = -(-(block_size - len(committed)) // (steps - t + 1))
        free = [i for i in range(1, block_size) if i not in committed]
        committed |= set(free[:count])
        counts.append(count)
    return counts, [level for level in levels if level < 1]


def test_against_the_loop_for_every_small_block() -> None:
    for block_size in range(2, 33):
        for steps in range(1, block_size):
            counts, levels = slow_counts_and_levels(block_size, steps)
            assert list(commit_counts(block_size, steps)) == counts, (block_size, steps)
            assert list(reveal_levels(block_size, steps)) == levels, (block_size, steps)


@pytest.mark.parametrize(("block_size", "steps"), [(16, 0), (16, 16), (16, -1), (2, 2), (1, 1)])
def test_a_block_that_cannot_be_refined_is_refused(block_size: int, steps: int) -> None:
    # (1, 1) is the empty case: an anchor alone leaves nothing to commit.
    with pytest.raises(ValueError, match=r"block_size|steps"):
        check_steps(block_size, steps)
    with pytest.raises(ValueError, match=r"block_size|steps"):
        commit_counts(block_size, steps)
    with pytest.raises(ValueError, match=r"block_size|steps"):
        reveal_levels(block_size, steps)
