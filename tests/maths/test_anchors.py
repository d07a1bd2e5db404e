"""Where a block may start, and the seeded draw among those places."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specforge_dstill.maths.anchors import draw_anchors, spread_anchors, valid_anchors
from tests.maths.generators import seeded

MASKS = st.lists(st.integers(0, 1), max_size=30)


def test_an_anchor_and_its_successor_are_both_scored() -> None:
    #                     0  1  2  3  4  5  6  7  8
    mask = torch.tensor([0, 1, 1, 1, 0, 1, 0, 1, 1])
    # 3 is followed by an unscored token, 5 stands alone, 8 has no successor.
    assert valid_anchors(mask).tolist() == [1, 2, 7]


@given(MASKS)
def test_against_the_loop(mask: list[int]) -> None:
    expected = [p for p in range(len(mask) - 1) if mask[p] and mask[p + 1]]
    found = valid_anchors(torch.tensor(mask, dtype=torch.int64))
    assert found.tolist() == expected
    assert found.dtype == torch.int64


@pytest.mark.parametrize("mask", [[], [1], [0, 0, 0], [1, 0, 1]])
@pytest.mark.parametrize("count", [None, 0, 3])
def test_no_anchor(mask: list[int], count: int | None) -> None:
    drawn = draw_anchors(torch.tensor(mask, dtype=torch.int64), count=count, generator=seeded(0))
    assert drawn.shape == (0,)
    assert drawn.dtype == torch.int64


@given(MASKS, st.integers(0, 12), st.integers(0, 1000))
def test_a_draw_is_a_sorted_subset_that_the_generator_decides(
    mask: list[int], count: int, seed: int
) -> None:
    loss_mask = torch.tensor(mask, dtype=torch.int64)
    valid = valid_anchors(loss_mask).tolist()
    drawn = draw_anchors(loss_mask, count=count, generator=seeded(seed)).tolist()
    assert len(drawn) == min(count, len(valid))
    assert drawn == sorted(set(drawn))
    assert set(drawn) <= set(valid)
    torch.rand(3)  # the global source of randomness plays no part
    assert draw_anchors(loss_mask, count=count, generator=seeded(seed)).tolist() == drawn


@pytest.mark.parametrize("count", [None, 5, 6])
def test_taking_every_anchor_leaves_the_generator_alone(count: int | None) -> None:
    generator = seeded(3)
    before = generator.get_state()
    drawn = draw_anchors(torch.ones(6), count=count, generator=generator)
    assert drawn.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(generator.get_state(), before)


def test_every_anchor_is_equally_likely() -> None:
    # 3 of 8 anchors, 4000 times: each is drawn 1500 times on average, and the count is
    # binomial with standard deviation sqrt(4000 * 3/8 * 5/8) = 30.6. Five of those: 154.
    generator = seeded(11)
    hits = torch.zeros(8)
    for _ in range(4000):
        drawn = draw_anchors(torch.ones(9), count=3, generator=generator)
        assert (drawn.diff() > 0).all()  # ascending and distinct
        hits[drawn] += 1
    assert (hits - 1500).abs().max() < 154


@given(MASKS, st.integers(1, 12))
def test_spread_anchors_lie_in_the_middle_of_equal_parts(mask: list[int], count: int) -> None:
    loss_mask = torch.tensor(mask, dtype=torch.int64)
    valid = valid_anchors(loss_mask).tolist()
    spread = spread_anchors(loss_mask, count=count).tolist()
    if len(valid) <= count:
        assert spread == valid
        return
    parts = [(part + 0.5) * len(valid) / count for part in range(count)]
    assert spread == [valid[int(middle)] for middle in parts]
    assert len(set(spread)) == count
