"""The two acceptance rules: by hand, against loops, and exact in distribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.drawing import draw, draw_at
from specforge_dstill.maths.verification import (
    accept_by_comparison,
    accept_by_rejection,
    check_rejection,
)
from tests.maths.generators import seeded


def distributions(*shape: int, seed: int, sharpness: float = 1.5) -> Tensor:
    """Random distributions over the last axis, some tokens of probability 0."""
    logits = sharpness * torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)
    logits[torch.rand(shape, generator=seeded(seed + 1)) < 0.1] = -torch.inf
    logits[..., 0] = logits[..., 0].clamp_min(-1)
    return logits.softmax(-1)


# Comparison


def test_comparison_by_hand() -> None:
    proposals = torch.tensor([[5, 6, 7], [5, 6, 7], [5, 6, 7], [5, 6, 7]])
    target = torch.tensor([[5, 6, 7, 8], [5, 6, 1, 8], [5, 2, 7, 8], [3, 6, 7, 8]])
    found = accept_by_comparison(proposals, target)
    # All, and the target's bonus token; else up to the first that differs, and its correction.
    assert found.lengths.tolist() == [3, 2, 1, 0]
    assert found.next_tokens.tolist() == [8, 1, 2, 3]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=4, max_size=4),
            st.lists(st.integers(0, 2), min_size=5, max_size=5),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_comes_out_are_the_targets_tokens(rows: list[tuple[list[int], list[int]]]) -> None:
    proposals, target = (torch.tensor(column) for column in zip(*rows, strict=True))
    found = accept_by_comparison(proposals, target)
    for row, (length, following) in enumerate(
        zip(found.lengths.tolist(), found.next_tokens.tolist(), strict=True)
    ):
        drafted, own = rows[row]
        assert [*drafted[:length], following] == own[: length + 1]
        assert length == 4 or drafted[length] != own[length]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_no_block_and_no_proposal(shape: tuple[int, int]) -> None:
    count, drafted = shape
    proposals = torch.zeros(shape, dtype=torch.int64)
    found = accept_by_comparison(proposals, torch.ones(count, drafted + 1, dtype=torch.int64))
    assert found.lengths.tolist() == [0] * count
    assert found.next_tokens.tolist() == [1] * count
    found = accept_by_rejection(
        proposals,
        draft_probabilities=torch.full((count, drafted, 3), 1 / 3),
        target_probabilities=torch.tensor([0.0, 0.0, 1.0]).expand(count, drafted + 1, 3),
        generator=seeded(0),
    )
    assert found.next_tokens.dtype == torch.int64
    assert found.next_tokens.tolist() == [2] * count


# Rejection


def test_rejection_by_hand() -> None:
    """Where every ratio p/q is 0 or at least 1, nothing is left to chance."""
    q = torch.tensor([[[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]]).repeat(3, 1, 1)
    p = torch.tensor([[[0.5, 0.0, 0.5], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]]).repeat(3, 1, 1)
    p[2, 2] = torch.tensor([1.0, 0.0, 0.0])
    proposals = torch.tensor([[1, 1], [0, 0], [0, 1]])
    found = accept_by_rejection(
        proposals, draft_probabilities=q, target_probabilities=p, generator=seeded(0)
    )
    # Refused at once: only token 2 has p > q. Refused second: again. All accepted: the bonus token.
    assert found.lengths.tolist() == [0, 1, 2]
    assert found.next_tokens.tolist() == [2, 2, 0]


def test_a_draft_that_is_the_target_is_accepted_whole() -> None:
    p = distributions(500, 4, 7, seed=3).float()
    proposals = draw(p[:, :-1].flatten(0, 1), generator=seeded(1)).unflatten(0, (500, 3))
    found = accept_by_rejection(
        proposals,
        draft_probabilities=p[:, :-1],
        target_probabilities=p,
        generator=seeded(2),
    )
    assert (found.lengths == 3).all()


def test_nothing_of_probability_zero_comes_out() -> None:
    p, q = distributions(2000, 4, 5, seed=5), distributions(2000, 3, 5, seed=6)
    proposals = draw(q.flatten(0, 1), generator=seeded(1)).unflatten(0, (2000, 3))
    found = accept_by_rejection(
        proposals, draft_probabilities=q, target_probabilities=p, generator=seeded(2)
    )
    rows = torch.arange(2000)
    assert (p[rows, found.lengths, found.next_tokens] > 0).all()
    accepted = torch.arange(3) < found.lengths[:, None]
    assert (p[:, :-1].gather(2, proposals[:, :, None]).squeeze(2)[accepted] > 0).all()
    # What follows a rejection is a token that the draft gave too little.
    rejected = found.lengths < 3
    at = (rows[rejected], found.lengths[rejected], found.next_tokens[rejected])
    assert (p[at] > q[at]).all()


def test_against_the_loop() -> None:
    """The same uniform numbers, one block and one position at a time.

    Of the same generator: a number for each position, then one for each block's next token.
    """
    p, q = distributions(300, 5, 6, seed=8), distributions(300, 4, 6, seed=9)
    proposals = draw(q.flatten(0, 1), generator=seeded(1)).unflatten(0, (300, 4))
    found = accept_by_rejection(
        proposals, draft_probabilities=q, target_probabilities=p, generator=seeded(2)
    )
    generator = seeded(2)
    uniform = torch.rand(300, 4, generator=generator, dtype=torch.float64)
    last = torch.rand(300, generator=generator, dtype=torch.float64)
    expected, following = [], []
    for block in range(300):
        length = 0
        while length < 4:
            token = int(proposals[block, length])
            if uniform[block, length] >= p[block, length, token] / q[block, length, token]:
                break
            length += 1
        expected.append(length)
        left = p[block, length]
        if length < 4:
            left = (left - q[block, length]).clamp_min(0)
        following.append(int(draw_at(left[None], last[block : block + 1])))
    assert set(expected) == {0, 1, 2, 3, 4}, "every case is there, the bonus token, too"
    assert found.lengths.tolist() == expected
    assert found.next_tokens.tolist() == following


def test_the_next_token_is_drawn_from_the_target() -> None:
    """Position by position: P(token at i | i-1 accepted) is p, for one fixed pair of p and q."""
    count = 200_000
    p, q = distributions(1, 3, 5, seed=11), distributions(1, 2, 5, seed=12)
    wide_q = q.expand(count, -1, -1)
    proposals = draw(wide_q.flatten(0, 1), generator=seeded(1)).unflatten(0, (count, 2))
    found = accept_by_rejection(
        proposals,
        draft_probabilities=wide_q,
        target_probabilities=p.expand(count, -1, -1),
        generator=seeded(2),
    )
    tokens = torch.cat([proposals, torch.zeros(count, 1, dtype=torch.int64)], dim=1)
    tokens[torch.arange(count), found.lengths] = found.next_tokens
    for position in range(3):
        reached = tokens[found.lengths >= position, position]
        share = torch.bincount(reached, minlength=5) / len(reached)
        torch.testing.assert_close(share.double(), p[0, position], atol=0.006, rtol=0)


def test_equal_up_to_rounding_is_no_dead_end() -> None:
    """p a little below q everywhere: nothing is left over to draw a correction from."""
    q = torch.tensor([[[0.5, 0.5]]]).repeat(4000, 1, 1)
    p = torch.tensor([[[0.499, 0.499], [1.0, 0.0]]]).repeat(4000, 1, 1)
    proposals = draw(q[:, 0], generator=seeded(1))[:, None]
    found = accept_by_rejection(
        proposals, draft_probabilities=q, target_probabilities=p, generator=seeded(2)
    )
    assert (found.lengths == 0).any()
    assert set(found.next_tokens[found.lengths == 0].tolist()) <= {0, 1}


@given(st.integers(2, 16))
def test_several_passes_have_no_probabilities_from_left_to_right(steps: int) -> None:
    check_rejection(steps=1)
    with pytest.raises(ValueError, match=f"which {steps} passes do not give; compare"):
        check_rejection(steps=steps)
