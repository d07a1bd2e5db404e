"""Which slot of a block predicts which position, for both kinds of drafters."""

from __future__ import annotations

import pytest
import torch

from specforge_dstill.maths.block_shape import BlockShape

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
