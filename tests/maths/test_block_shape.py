"""Which slot of a block predicts which position: by hand, by a loop, and of no block."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.block_shape import BlockShape
from tests.maths.generators import seeded

IN_PLACE = BlockShape(slots=4)
NEXT = BlockShape(slots=4, shift=1)


@pytest.mark.parametrize(
    ("architecture", "expected"), [("DFlashDraftModel", IN_PLACE), ("DSparkDraftModel", NEXT)]
)
def test_a_draft_config_names_its_shape(architecture: str, expected: BlockShape) -> None:
    assert BlockShape.of({"architectures": [architecture], "block_size": 4}) == expected


def test_a_drafter_that_predicts_in_place_reads_every_position() -> None:
    tokens, states = torch.arange(8).view(2, 4), torch.randn(2, 4, 3)
    assert IN_PLACE.positions == 4
    assert torch.equal(IN_PLACE.read(tokens), tokens)
    assert torch.equal(IN_PLACE.by_position(states), states)
    assert not IN_PLACE.in_input(torch.zeros(2, 4, dtype=torch.bool)).any()


def test_a_drafter_that_predicts_the_next_token_has_one_position_more() -> None:
    tokens, states = torch.arange(10).view(2, 5), torch.randn(2, 4, 3)
    assert NEXT.positions == 5
    assert NEXT.read(tokens).tolist() == [[0, 1, 2, 3], [5, 6, 7, 8]]
    found = NEXT.by_position(states)
    # The anchor's slot predicts position 1, the last slot position 4; none predicts the anchor.
    assert torch.equal(found[:, 1:], states)
    assert not found[:, 0].any()


def test_a_position_without_a_slot_is_masked_in_every_input() -> None:
    known = torch.tensor([[False, False, True, False, False]])
    assert NEXT.in_input(known).tolist() == [[False, False, True, False, True]]


SHAPES = st.builds(BlockShape, st.integers(1, 6), st.integers(0, 1))


def slow(shape: BlockShape, states: Tensor, masked: Tensor) -> tuple[list[Tensor], list[bool]]:
    """States and mask of one block's positions, slot by slot: slot s predicts s + shift."""
    by_position = [torch.zeros(states.shape[-1])] * shape.positions
    in_input = [True] * shape.positions
    for slot in range(shape.slots):
        by_position[slot + shape.shift] = states[slot]
        in_input[slot] = bool(masked[slot])
    return by_position, in_input


@given(SHAPES, st.integers(0, 3), st.integers(0, 10_000))
def test_against_the_loop(shape: BlockShape, count: int, seed: int) -> None:
    generator = seeded(seed)
    states = torch.randn(count, shape.slots, 2, generator=generator)
    masked = torch.rand(count, shape.positions, generator=generator) < 0.5
    by_position, in_input = shape.by_position(states), shape.in_input(masked)
    assert by_position.shape == (count, shape.positions, 2)
    assert in_input.shape == masked.shape
    for n in range(count):
        expected = slow(shape, states[n], masked[n])
        assert torch.equal(by_position[n], torch.stack(expected[0]))
        assert in_input[n].tolist() == expected[1]


@given(SHAPES, st.integers(0, 10_000))
def test_each_slot_predicts_one_position_and_what_is_read_is_never_added_to(
    shape: BlockShape, seed: int
) -> None:
    predicted = shape.by_position(torch.ones(1, shape.slots, 1))
    assert predicted.sum() == shape.slots
    masked = torch.rand(4, shape.positions, generator=seeded(seed)) < 0.5
    in_input = shape.in_input(masked)
    assert torch.equal(shape.read(in_input), shape.read(masked))
    assert torch.equal(shape.in_input(in_input), in_input)


@pytest.mark.parametrize("shape", [IN_PLACE, NEXT])
def test_no_block(shape: BlockShape) -> None:
    tokens = torch.zeros(0, shape.positions, dtype=torch.int64)
    assert shape.read(tokens).shape == (0, 4)
    assert shape.by_position(torch.zeros(0, 4, 3)).shape == (0, shape.positions, 3)
    assert shape.in_input(tokens.bool()).shape == (0, shape.positions)
