"""Attention over parts of the keys, merged, is attention over all of them."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.attention_merge import PartialAttention, merge_attention

# float64 throughout: a few roundings of 1e-16 on numbers of size 1.
CLOSE = {"atol": 1e-12, "rtol": 1e-12}


def attend(query: Tensor, key: Tensor, value: Tensor) -> PartialAttention:
    """Attention of [Q, D] over [S, D]; of nothing, an output of 0."""
    scores = query @ key.T
    if not len(key):
        return PartialAttention(torch.zeros_like(query), scores.new_full((len(query),), -torch.inf))
    return PartialAttention(scores.softmax(-1) @ value, scores.logsumexp(-1))


def test_by_hand() -> None:
    # Sums of exponentials 3 and 1: three quarters of the first part, a quarter of the second.
    first = PartialAttention(torch.tensor([[4.0, 0.0]]), torch.tensor([log(3)]))
    second = PartialAttention(torch.tensor([[0.0, 8.0]]), torch.tensor([log(1)]))
    torch.testing.assert_close(merge_attention([first, second]), torch.tensor([[3.0, 2.0]]))


def test_one_part_and_an_unseen_part() -> None:
    seen = PartialAttention(torch.tensor([[1.0, 2.0]]), torch.tensor([0.5]))
    unseen = PartialAttention(torch.tensor([[9.0, 9.0]]), torch.tensor([-torch.inf]))
    assert merge_attention([seen]).tolist() == [[1.0, 2.0]]
    assert merge_attention([unseen, seen]).tolist() == [[1.0, 2.0]]


def test_no_query() -> None:
    empty = PartialAttention(torch.zeros(3, 0, 4), torch.zeros(3, 0))
    assert merge_attention([empty, empty]).shape == (3, 0, 4)


def test_the_dtype_is_the_outputs() -> None:
    part = PartialAttention(torch.ones(2, 4, dtype=torch.bfloat16), torch.zeros(2))
    assert merge_attention([part, part]).dtype == torch.bfloat16


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any), st.integers(0, 1000))
def test_any_cut_of_the_keys(sizes: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return 3 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    query, key, value = normal(3, 4), normal(sum(sizes), 4), normal(sum(sizes), 4)
    cut = zip(key.split(sizes), value.split(sizes), strict=True)
    found = merge_attention([attend(query, keys, values) for keys, values in cut])
    torch.testing.assert_close(found, attend(query, key, value).output, **CLOSE)


def test_against_a_slow_loop() -> None:
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    sums = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    found = merge_attention([PartialAttention(o, s) for o, s in zip(outputs, sums, strict=True)])
    for q in range(5):
        mass = [exp(float(sums[part, q])) for part in range(2)]
        for d in range(3):
            expected = sum(m * float(outputs[p, q, d]) for p, m in enumerate(mass)) / sum(mass)
            assert float(found[q, d]) == pytest.approx(expected, abs=1e-12)
