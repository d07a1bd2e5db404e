"""Less supervision after the teacher has left the reference (Eq. 11)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.trajectory_weights import agreement_weights, first_mismatch

REFERENCE = torch.tensor([[9, 1, 2, 3, 4, 5]])
LEAVES_AT_2 = torch.tensor([[9, 1, 0, 3, 4, 0]])
SCORED = torch.tensor([[False, True, True, True, True, True]])


def test_the_ablation_by_hand() -> None:
    assert first_mismatch(LEAVES_AT_2, REFERENCE, SCORED).tolist() == [2]
    # d = 2: weights 1, 1, then 0.4 times 1, 1/2, 1/4, 1/8. Agreeing again at 3 changes nothing.
    weights = agreement_weights(LEAVES_AT_2, REFERENCE, SCORED, first=0.4, decay=0.5)
    # float32 holds 0.4 to 3e-8.
    expected = torch.tensor([[1, 1, 0.4, 0.2, 0.1, 0.05]])
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=0)


def test_the_tail_is_flat_without_a_decay() -> None:
    weights = agreement_weights(LEAVES_AT_2, REFERENCE, SCORED, first=0.25)
    assert weights.tolist() == [[1, 1, 0.25, 0.25, 0.25, 0.25]]


@pytest.mark.parametrize("decay", [None, 0.5])
def test_off_by_default(decay: float | None) -> None:
    weights = agreement_weights(LEAVES_AT_2, REFERENCE, SCORED, first=None, decay=decay)
    assert weights.tolist() == [[1.0] * 6]


def test_without_a_mismatch_the_mismatch_lies_past_the_block() -> None:
    assert first_mismatch(REFERENCE, REFERENCE, SCORED).tolist() == [6]
    weights = agreement_weights(REFERENCE, REFERENCE, SCORED, first=0.4, decay=0.5)
    assert weights.tolist() == [[1.0] * 6]


def test_only_scored_positions_can_mismatch() -> None:
    # Position 2 differs but belongs to another turn, so the first mismatch is position 5.
    scored = torch.tensor([[False, True, False, True, True, True]])
    assert first_mismatch(LEAVES_AT_2, REFERENCE, scored).tolist() == [5]
    nothing = torch.zeros(1, 6, dtype=torch.bool)
    assert first_mismatch(LEAVES_AT_2, REFERENCE, nothing).tolist() == [6]


def test_no_block() -> None:
    none = torch.zeros(0, 6, dtype=torch.int64)
    for first in (None, 0.4):
        weights = agreement_weights(none, none, none.bool(), first=first, decay=0.5)
        assert weights.shape == (0, 6)
        assert weights.dtype == torch.float32


@st.composite
def comparisons(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Endpoint, reference and scored positions; about half of the positions agree."""
    shape = (draw(st.integers(0, 5)), draw(st.integers(2, 10)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    endpoint = torch.randint(2, shape, generator=generator)
    reference = torch.randint(2, shape, generator=generator)
    scored = torch.rand(shape, generator=generator) < 0.7
    scored[:, 0] = False
    return endpoint, reference, scored


@given(comparisons(), st.sampled_from([0.1, 0.4, 1.0]), st.sampled_from([None, 0.5, 0.9]))
def test_against_the_loop(
    case: tuple[Tensor, Tensor, Tensor], first: float, decay: float | None
) -> None:
    endpoint, reference, scored = case
    count, block_size = endpoint.shape
    weights = agreement_weights(endpoint, reference, scored, first=first, decay=decay)
    distances = first_mismatch(endpoint, reference, scored)
    for n in range(count):
        d = block_size
        for i in range(block_size - 1, 0, -1):
            if scored[n, i] and endpoint[n, i] != reference[n, i]:
                d = i
        assert distances[n] == d
        for i in range(block_size):
            tail = first if decay is None else first * decay ** max(i - d, 0)
            expected = 1.0 if i < d else tail
            # A power and a product in float32.
            assert float(weights[n, i]) == pytest.approx(expected, rel=1e-6)


@given(comparisons(), st.floats(0.01, 1.0), st.none() | st.floats(0.01, 0.99))
def test_weights_never_rise_and_never_vanish(
    case: tuple[Tensor, Tensor, Tensor], first: float, decay: float | None
) -> None:
    weights = agreement_weights(*case, first=first, decay=decay)
    assert (weights.diff(dim=1) <= 0).all()
    assert (weights > 0).all()
    assert (weights <= 1).all()
