"""Reference blocks cut out of one sequence."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specforge_dstill.maths.blocks import reference_blocks


def test_a_block_inside_and_a_block_past_the_end() -> None:
    tokens = torch.tensor([10, 11, 12, 13, 14, 15])
    mask = torch.tensor([0, 0, 1, 1, 0, 1])
    blocks = reference_blocks(tokens, mask, torch.tensor([2, 4]), block_size=4)
    # Anchor 2 covers positions 2..5; position 4 belongs to another turn: inside, not scored.
    # Anchor 4 covers positions 4..7, of which 6 and 7 do not exist.
    assert blocks.tokens.tolist() == [[12, 13, 14, 15], [14, 15, 0, 0]]
    assert blocks.inside.tolist() == [[True] * 4, [True, True, False, False]]
    # Position 2 is scored in the sequence, but an anchor never is.
    assert blocks.scored.tolist() == [[False, True, False, True], [False, True, False, False]]
    assert len(blocks) == 2


def test_no_block() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for length in (0, 5):
        tokens = torch.arange(length)
        blocks = reference_blocks(tokens, torch.ones(length), none, block_size=4)
        assert blocks.tokens.shape == blocks.inside.shape == blocks.scored.shape == (0, 4)
        assert len(blocks) == 0


@st.composite
def sequences(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], int]:
    """Tokens (none of them 0), loss mask, anchors in any order, block size."""
    length = draw(st.integers(1, 20))
    tokens = draw(st.lists(st.integers(1, 99), min_size=length, max_size=length))
    mask = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
    anchors = draw(st.lists(st.integers(0, length - 1), max_size=6))
    return tokens, mask, anchors, draw(st.integers(2, 8))


@given(sequences())
def test_against_the_loop(case: tuple[list[int], list[int], list[int], int]) -> None:
    tokens, mask, anchors, block_size = case
    blocks = reference_blocks(
        torch.tensor(tokens),
        torch.tensor(mask),
        torch.tensor(anchors, dtype=torch.int64),
        block_size=block_size,
    )
    for n, anchor in enumerate(anchors):
        for i in range(block_size):
            inside = anchor + i < len(tokens)
            assert blocks.inside[n, i] == inside
            assert blocks.tokens[n, i] == (tokens[anchor + i] if inside else 0)
            assert blocks.scored[n, i] == (inside and i > 0 and mask[anchor + i] == 1)


@given(sequences())
def test_scored_positions_have_a_token_and_inputs_are_left_alone(
    case: tuple[list[int], list[int], list[int], int],
) -> None:
    tokens, mask, anchors, block_size = case
    inputs = [torch.tensor(values, dtype=torch.int64) for values in (tokens, mask, anchors)]
    copies = [tensor.clone() for tensor in inputs]
    blocks = reference_blocks(*inputs, block_size=block_size)
    assert not (blocks.scored & ~blocks.inside).any()
    assert not blocks.scored[:, 0].any()
    assert blocks.inside[:, 0].all()
    assert all(map(torch.equal, inputs, copies))
