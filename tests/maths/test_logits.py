"""The fast passes over logits: by hand, and against torch's own."""

from __future__ import annotations

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.logits import (
    GROUP_SIZE,
    ROWS_AT_ONCE,
    largest,
    log_normaliser,
    softmax,
)

EXACT = 1e-12


def drawn(rows: int, vocabulary: int, *, seed: int = 0, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64) * scale


@given(
    st.integers(0, 5),
    st.integers(1, 6 * GROUP_SIZE),
    st.integers(1, 20),
    st.integers(0, 10_000),
)
def test_the_largest_and_among_equals_the_lower_ids(
    rows: int, vocabulary: int, count: int, seed: int
) -> None:
    count = min(count, vocabulary)
    logits = drawn(rows, vocabulary, seed=seed, scale=1.0).round()  # mostly ties
    values, ids = largest(logits, count)
    for row, found in zip(logits.tolist(), ids.tolist(), strict=True):
        order = sorted(range(vocabulary), key=lambda v: (-row[v], v))
        assert found == order[:count]
    assert torch.equal(values, logits.gather(1, ids))


@given(
    st.integers(0, 5),
    st.integers(1, 6 * GROUP_SIZE),
    st.integers(1, 20),
    st.integers(0, 10_000),
)
def test_the_largest_are_those_of_topk(rows: int, vocabulary: int, count: int, seed: int) -> None:
    count = min(count, vocabulary)
    logits = drawn(rows, vocabulary, seed=seed)
    values, ids = largest(logits, count)
    expected = logits.topk(count, dim=1)
    assert torch.equal(values, expected.values)
    assert torch.equal(ids, expected.indices)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_largest_among_equals_and_what_is_ruled_out(count: int) -> None:
    logits = torch.full((2, 5 * GROUP_SIZE), -torch.inf)
    equal = [3, GROUP_SIZE, GROUP_SIZE + 1, 4 * GROUP_SIZE + 7, 5 * GROUP_SIZE - 1]
    logits[:, equal] = 1.0
    values, ids = largest(logits, count)
    assert (values == 1).all()
    assert ids.tolist() == [equal[:count]] * 2, "the lower ids first"


def test_by_hand() -> None:
    """Probabilities 1/2, 1/4, 1/8, 1/8, times 8: the normaliser is log 8."""
    logits = torch.tensor([[2.0, 4.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]).log()
    values, ids = largest(logits, 3)
    assert ids.tolist() == [[1, 0, 2], [0, 1, 2]]
    assert values.exp().tolist() == [pytest.approx([4, 2, 1]), pytest.approx([1, 1, 1])]
    probabilities, normaliser = softmax(logits)
    expected = [[1 / 4, 1 / 2, 1 / 8, 1 / 8], [1 / 4] * 4]
    assert probabilities.tolist() == [pytest.approx(row) for row in expected]
    assert normaliser.squeeze(1).tolist() == pytest.approx([log(8), log(4)])
    assert log_normaliser(logits).squeeze(1).tolist() == pytest.approx([log(8), log(4)])


def test_by_hand_across_groups_and_ids_left_over() -> None:
    logits = torch.zeros(1, 5 * GROUP_SIZE + 5)
    places = [2 * GROUP_SIZE + 9, 5 * GROUP_SIZE + 4, 5, 2 * GROUP_SIZE]
    logits[0, places] = torch.tensor([7.0, 6.0, 5.0, 5.0])
    values, ids = largest(logits, 2)
    assert (values.tolist(), ids.tolist()) == ([[7, 6]], [places[:2]])
    # Of the two fives the one in the first group, though the other's group was needed, too.
    assert largest(logits, 3)[1].tolist() == [places[:3]]
    assert largest(logits, 4)[1].tolist() == [places]


@pytest.mark.parametrize("vocabulary", [4, 3 * GROUP_SIZE + 1])
def test_no_row(vocabulary: int) -> None:
    none = torch.zeros(0, vocabulary)
    probabilities, normaliser = softmax(none)
    assert (probabilities.shape, normaliser.shape) == ((0, vocabulary), (0, 1))
    assert largest(none, 2)[1].shape == (0, 2)
    out = torch.empty_like(none)
    assert softmax(none, out=out)[0].shape == out.shape


@given(st.integers(1, 3), st.sampled_from([1.0, 40.0]), st.integers(0, 10_000))
def test_softmax_and_its_normaliser(rows: int, scale: float, seed: int) -> None:
    logits = drawn(rows, 3 * GROUP_SIZE + 1, seed=seed, scale=scale)
    out = torch.empty_like(logits)
    probabilities, normaliser = softmax(logits, out=out)
    assert probabilities.data_ptr() == out.data_ptr()
    torch.testing.assert_close(out, logits.softmax(dim=1), rtol=EXACT, atol=EXACT)
    expected = logits.logsumexp(dim=1, keepdim=True)
    torch.testing.assert_close(normaliser, expected, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("rows", [0, 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 1])
def test_the_normaliser_a_few_rows_at_a_time(rows: int) -> None:
    logits = drawn(rows, 70)
    before = logits.clone()
    expected = logits.logsumexp(dim=1, keepdim=True)
    torch.testing.assert_close(log_normaliser(logits), expected, rtol=EXACT, atol=EXACT)
    assert torch.equal(logits, before)


def test_float32_loses_nothing_to_the_normaliser() -> None:
    logits = drawn(50, 1000, scale=10.0)
    exact = logits.float().double().logsumexp(dim=1, keepdim=True)
    # Values of size 30 are known to 2e-6 in float32; the sum adds a few units in the last place.
    torch.testing.assert_close(log_normaliser(logits.float()).double(), exact, rtol=4e-7, atol=0.0)
