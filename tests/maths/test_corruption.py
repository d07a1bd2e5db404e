"""Stage I's input: which positions of a reference block are visible."""

from __future__ import annotations

from math import comb, sqrt

import torch
from hypothesis import given
from hypothesis import strategies as st

from specforge_dstill.maths.blocks import ReferenceBlocks, reference_blocks
from specforge_dstill.maths.corruption import corrupt, draw_reveal
from specforge_dstill.maths.reveal_schedule import reveal_levels
from tests.maths.generators import seeded

MASK = 99
ALMOST_ONE = 1 - 2**-24


def blocks_within(count: int, block_size: int, *, length: int | None = None) -> ReferenceBlocks:
    """``count`` equal blocks from position 0 of a sequence of ``length`` (default: B) tokens."""
    tokens = torch.arange(1, (length or block_size) + 1)
    anchors = torch.zeros(count, dtype=torch.int64)
    return reference_blocks(tokens, torch.ones_like(tokens), anchors, block_size=block_size)


def test_the_mask_replaces_what_is_not_revealed() -> None:
    tokens = torch.tensor([[7, 3, 5, 4]])
    revealed = torch.tensor([[True, False, True, False]])
    assert corrupt(tokens, revealed, mask_token_id=MASK).tolist() == [[7, MASK, 5, MASK]]


def test_the_two_ends_of_the_scale() -> None:
    # Level 0 is the root: the anchor alone. A level of 1 - 2^-24, the closest float32 below 1,
    # reveals every position that has a token: three of these five.
    blocks = blocks_within(2, 5, length=3)
    root = draw_reveal(blocks, levels=(0.0,), generator=seeded(0))
    assert root.tolist() == [[True, False, False, False, False]] * 2
    full = draw_reveal(blocks, levels=(ALMOST_ONE,), generator=seeded(0))
    assert full.tolist() == [[True, True, True, False, False]] * 2


def test_no_block() -> None:
    revealed = draw_reveal(blocks_within(0, 4), levels=(0.0, 0.5), generator=seeded(0))
    assert revealed.shape == (0, 4)
    assert corrupt(torch.zeros(0, 4).long(), revealed, mask_token_id=MASK).shape == (0, 4)


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(2, 9), st.integers(1, 9))
def test_the_anchor_is_visible_and_what_does_not_exist_is_not(
    seed: int, count: int, block_size: int, length: int
) -> None:
    blocks = blocks_within(count, block_size, length=length)
    revealed = draw_reveal(blocks, levels=(0.0, 0.5, 0.9), generator=seeded(seed))
    assert revealed[:, 0].all()
    assert not (revealed & ~blocks.inside).any()


@given(st.integers(0, 1000))
def test_only_the_generator_decides(seed: int) -> None:
    blocks = blocks_within(4, 6)
    first = draw_reveal(blocks, levels=reveal_levels(6, 3), generator=seeded(seed))
    torch.rand(5)  # neither the global source of randomness nor the tokens play a part
    others = ReferenceBlocks(blocks.tokens + 1, blocks.inside, torch.zeros_like(blocks.scored))
    second = draw_reveal(others, levels=reveal_levels(6, 3), generator=seeded(seed))
    assert torch.equal(first, second)


def test_the_share_of_revealed_positions_is_the_level() -> None:
    count, block_size = 20_000, 6
    for level in (1 / 15, 0.4, 14 / 15):
        revealed = draw_reveal(
            blocks_within(count, block_size), levels=(level,), generator=seeded(5)
        )
        share = revealed[:, 1:].float().mean(dim=0)
        # A share of independent draws has standard deviation sqrt(r (1 - r) / count);
        # five of those fail once in two million.
        assert (share - level).abs().max() < 5 * sqrt(level * (1 - level) / count)


def test_one_level_for_the_whole_block() -> None:
    # With one level a block, the number of revealed positions follows the mean of binomials
    # over the levels, which is wider than a binomial at the mean level. Loop over both sums.
    levels, block_size, count = (0.0, 0.3, 0.8), 5, 20_000
    revealed = draw_reveal(blocks_within(count, block_size), levels=levels, generator=seeded(6))
    found = revealed[:, 1:].sum(dim=1).bincount(minlength=block_size)
    for m in range(block_size):
        probability = 0.0
        for r in levels:
            probability += comb(4, m) * r**m * (1 - r) ** (4 - m) / len(levels)
        sigma = sqrt(count * probability * (1 - probability))
        assert abs(float(found[m]) - count * probability) < 5 * sigma, m


def test_corrupt_against_the_loop() -> None:
    tokens = torch.randint(90, (7, 6), generator=seeded(1))
    revealed = torch.rand(7, 6, generator=seeded(2)) < 0.5
    state = corrupt(tokens, revealed, mask_token_id=MASK)
    for n in range(7):
        for i in range(6):
            assert state[n, i] == (tokens[n, i] if revealed[n, i] else MASK)
