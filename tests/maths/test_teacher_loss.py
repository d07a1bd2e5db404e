"""Stage I's weights: the loop over Eq. 2, 6 and 7 against one weight per row."""

from __future__ import annotations

from math import exp

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.teacher_loss import (
    mask_count_weights,
    position_log_weights,
    teacher_row_weights,
)

# Weights are float32 and a block adds up at most 15 of them: 16 roundings of 6e-8 each.
CLOSE = 1e-6


@st.composite
def masks(draw: st.DrawFn) -> Tensor:
    """[N, B] bool with the anchor never in it; N may be 0 and blocks may be empty."""
    count, block_size = draw(st.integers(0, 5)), draw(st.integers(2, 12))
    seed = draw(st.integers(0, 10_000))
    share = draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))
    generator = torch.Generator().manual_seed(seed)
    masked = torch.rand(count, block_size, generator=generator) < share
    masked[:, 0] = False
    return masked


def mean_loss(masked: Tensor, nll: Tensor, *, gamma: float | None, alpha_m: float) -> float:
    """The loss that the weights stand for."""
    weights, blocks = teacher_row_weights(masked, gamma=gamma, alpha_m=alpha_m)
    return float((weights * nll).sum() / blocks.clamp(min=1))


def slow_eq2(masked: Tensor, nll: Tensor) -> float:
    """Mean over M, then arithmetic mean over the blocks with |M| > 0."""
    losses = []
    for n in range(len(masked)):
        values = [float(nll[n, i]) for i in range(masked.shape[1]) if masked[n, i]]
        if values:
            losses.append(sum(values) / len(values))
    return sum(losses) / len(losses) if losses else 0.0


def slow_eq6(masked: Tensor, nll: Tensor, *, gamma: float | None, alpha_m: float) -> float:
    """Eq. 6 with the block weight of Eq. 7, a block and a position at a time."""
    block_size = masked.shape[1]
    losses = []
    for n in range(len(masked)):
        inside = [i for i in range(1, block_size) if masked[n, i]]
        if not inside:
            continue
        reference = sum(m**alpha_m for m in range(1, block_size)) / (block_size - 1)
        w_block = len(inside) ** alpha_m / reference
        w_pos = {i: exp(-(i - 1) / gamma) if gamma else 1.0 for i in inside}
        total = sum(w_pos[i] * float(nll[n, i]) for i in inside)
        losses.append(w_block * total / sum(w_pos.values()))
    return sum(losses) / len(losses) if losses else 0.0


def losses_like(masked: Tensor) -> Tensor:
    return torch.rand(masked.shape, generator=torch.Generator().manual_seed(7)) * 5


def test_position_weights_by_hand() -> None:
    assert position_log_weights(4).tolist() == [0, 0, 0, 0]
    assert position_log_weights(4, gamma=2.0)[1:].tolist() == [0, -1 / 2, -1]


def test_row_weights_by_hand() -> None:
    masked = torch.tensor([[False, True, False, True], [False] * 4, [False, True, True, True]])
    # Unweighted: halves in the first block, nothing in the second, thirds in the third.
    weights, blocks = teacher_row_weights(masked)
    expected = torch.tensor([[0, 1 / 2, 0, 1 / 2], [0] * 4, [0, 1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(weights, expected, rtol=CLOSE, atol=0)
    assert blocks == 2
    # gamma = 2, first block: 1 and exp(-1) = 0.3678794 over their sum 1.3678794.
    # alpha_m = 1: the mean of 1, 2, 3 is 2, so the first block weighs 2 / 2 = 1 and the third
    # 3 / 2. Third block: (1, 0.6065307, 0.3678794) / 1.9744101 * 1.5.
    weights, blocks = teacher_row_weights(masked, gamma=2.0, alpha_m=1.0)
    expected = torch.tensor(
        [[0, 0.7310586, 0, 0.2689414], [0] * 4, [0, 0.7597206, 0.4607939, 0.2794855]]
    )
    torch.testing.assert_close(weights, expected, rtol=0, atol=CLOSE)
    assert blocks == 2


def test_the_steepest_decay_leaves_each_block_its_first_masked_position() -> None:
    """exp(-14 / gamma) is 0 and exp(1 / gamma), at the anchor, infinite: neither may matter."""
    masked = torch.zeros(4, 16, dtype=torch.bool)
    masked[0, 1:], masked[1, 7:], masked[2, 15] = True, True, True
    weights, blocks = teacher_row_weights(masked, gamma=1e-3)
    assert weights.nonzero().tolist() == [[0, 1], [1, 7], [2, 15]]
    assert weights.sum(dim=1).tolist() == [1, 1, 1, 0]
    assert blocks == 3


def test_no_masked_position_and_no_block() -> None:
    for masked in (torch.zeros(3, 5, dtype=torch.bool), torch.zeros(0, 5, dtype=torch.bool)):
        for alpha_m in (0.0, 0.5, -0.5):
            weights, blocks = teacher_row_weights(masked, gamma=3.0, alpha_m=alpha_m)
            assert torch.equal(weights, torch.zeros(masked.shape))
            assert blocks == 0


@given(masks())
def test_the_defaults_are_the_unweighted_objective(masked: Tensor) -> None:
    nll = losses_like(masked)
    found = mean_loss(masked, nll, gamma=None, alpha_m=0.0)
    assert found == pytest.approx(slow_eq2(masked, nll), rel=1e-5, abs=CLOSE)
    # and the loop over Eq. 6 agrees that both are the same objective
    both = slow_eq6(masked, nll, gamma=None, alpha_m=0.0)
    assert both == pytest.approx(slow_eq2(masked, nll), rel=1e-12)


@given(masks(), st.sampled_from([None, 0.8, 3.0, 7.0]), st.sampled_from([-0.5, 0.0, 0.5, 1.0, 2.0]))
def test_against_the_loop(masked: Tensor, gamma: float | None, alpha_m: float) -> None:
    nll = losses_like(masked)
    found = mean_loss(masked, nll, gamma=gamma, alpha_m=alpha_m)
    expected = slow_eq6(masked, nll, gamma=gamma, alpha_m=alpha_m)
    assert found == pytest.approx(expected, rel=1e-5, abs=CLOSE)


@given(masks(), st.sampled_from([None, 3.0]), st.sampled_from([0.0, 0.7]))
def test_a_block_shares_out_exactly_its_own_weight(
    masked: Tensor, gamma: float | None, alpha_m: float
) -> None:
    weights, blocks = teacher_row_weights(masked, gamma=gamma, alpha_m=alpha_m)
    counts = masked.sum(dim=1)
    assert torch.equal(weights > 0, masked)
    assert blocks == (counts > 0).sum()
    shared = mask_count_weights(counts, block_size=masked.shape[1], alpha_m=alpha_m)
    torch.testing.assert_close(weights.sum(dim=1), shared, rtol=1e-5, atol=0)


@given(st.integers(2, 40), st.floats(-1.0, 3.0))
def test_block_weights_average_to_one_over_uniform_mask_counts(b: int, alpha_m: float) -> None:
    # The denominator of Eq. 7 is there for this.
    weights = mask_count_weights(torch.arange(1, b), block_size=b, alpha_m=alpha_m)
    assert float(weights.mean()) == pytest.approx(1.0, abs=1e-5)


def test_without_an_exponent_every_block_weighs_one() -> None:
    counts = torch.tensor([0, 1, 2, 15])
    assert mask_count_weights(counts, block_size=16, alpha_m=0.0).tolist() == [0, 1, 1, 1]


def test_a_positive_exponent_favours_heavily_masked_blocks() -> None:
    weights = mask_count_weights(torch.arange(16), block_size=16, alpha_m=0.5)
    assert (weights.diff() > 0).all()


@pytest.mark.parametrize("gamma", [0.0, -1.0])
def test_a_decay_that_is_not_positive_is_refused(gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma"):
        position_log_weights(4, gamma=gamma)
