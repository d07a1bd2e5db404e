"""L1 between two distributions and its gradient: by hand, against a loop, and by its bounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.logits import ROWS_AT_ONCE
from specforge_dstill.maths.target_distance import acceptance, add_distance
from tests.maths.generators import seeded

VOCABULARY = 7
# float64; only the order of additions differs.
EXACT = 1e-12
# Nothing, one row, one chunk, and two chunks with a row left over.
ROWS = [0, 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 1]


def drawn(rows: int, *, seed: int, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, VOCABULARY, generator=seeded(seed), dtype=torch.float64)


def test_by_hand() -> None:
    # p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): |1/4| + 0 + |-1/4|.
    p, q = torch.tensor([[2.0, 1, 1]]).log(), torch.tensor([[1.0, 1, 2]]).log()
    gradient = torch.ones(1, 3)
    found = add_distance(p, q, gradient, share=2.0)
    assert found.tolist() == pytest.approx([0.5])
    # s = (1, 0, -1), its mean under p is 1/4: p (s - 1/4), twice that is added to what was there.
    assert gradient[0].tolist() == pytest.approx([1 + 3 / 4, 1 - 1 / 8, 1 - 5 / 8])
    assert acceptance(found).tolist() == pytest.approx([1 / 4 + 1 / 4 + 1 / 4])


@pytest.mark.parametrize("rows", ROWS)
def test_against_the_loop(rows: int) -> None:
    logits, target, before = drawn(rows, seed=1), drawn(rows, seed=2), drawn(rows, seed=3)
    kept = logits.clone(), target.clone()
    gradient = before.clone()
    found = add_distance(logits, target, gradient, share=0.3)
    assert found.shape == (rows,)
    for r in range(rows):
        leaf = logits[r].clone().requires_grad_()
        distance = (leaf.softmax(dim=0) - target[r].softmax(dim=0)).abs().sum()
        (expected,) = torch.autograd.grad(distance, leaf)
        assert float(found[r]) == pytest.approx(distance.item(), abs=EXACT)
        torch.testing.assert_close(gradient[r], before[r] + 0.3 * expected, rtol=EXACT, atol=EXACT)
    assert torch.equal(logits, kept[0])
    assert torch.equal(target, kept[1])


@pytest.mark.parametrize("rows", ROWS)
def test_rows_that_do_not_count_have_no_gradient(rows: int) -> None:
    logits, target = drawn(rows, seed=1), drawn(rows, seed=2)
    counts = (torch.rand(rows, generator=seeded(4)) < 0.5).double()
    every, some = torch.zeros(2, rows, VOCABULARY, dtype=torch.float64)
    found = add_distance(logits, target, every, share=0.3)
    assert torch.equal(add_distance(logits, target, some, share=0.3, counts=counts), found)
    torch.testing.assert_close(some, counts[:, None] * every, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("rows", ROWS)
def test_without_a_share_or_a_gradient_the_distance_is_the_same(rows: int) -> None:
    logits, target, gradient = drawn(rows, seed=1), drawn(rows, seed=2), drawn(rows, seed=3)
    before = gradient.clone()
    found = add_distance(logits, target, gradient, share=0.0)
    assert torch.equal(gradient, before)
    assert torch.equal(add_distance(logits, target, None, share=0.3), found)


@given(st.integers(0, 5), st.sampled_from([0.1, 3.0, 300.0]), st.integers(0, 10_000))
def test_a_distance_is_between_0_and_2(rows: int, scale: float, seed: int) -> None:
    logits, target = drawn(rows, seed=seed, scale=scale), drawn(rows, seed=seed + 1, scale=scale)
    gradient = torch.zeros_like(logits)
    found = add_distance(logits, target, gradient, share=1.0)
    assert ((found >= 0) & (found <= 2 + EXACT)).all()
    torch.testing.assert_close(add_distance(target, logits, None, share=0.0), found)
    # A constant added to all logits changes nothing.
    assert (gradient.sum(dim=1).abs() < EXACT).all()
    assert torch.equal(add_distance(logits, logits, None, share=0.0), torch.zeros(rows).double())
    shared = torch.minimum(logits.softmax(dim=1), target.softmax(dim=1)).sum(dim=1)
    torch.testing.assert_close(acceptance(found), shared, rtol=EXACT, atol=EXACT)


def test_rounding_gives_no_acceptance_below_0_or_above_1() -> None:
    assert acceptance(torch.tensor([2 + 1e-6, 2.0, 0.0, -1e-6])).tolist() == [0, 0, 1, 1]
