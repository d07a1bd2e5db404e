"""Stage I's input: reference blocks with some positions revealed and the rest masked.

Shapes: N blocks, B block size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specforge_dstill.maths.blocks import ReferenceBlocks


def draw_reveal(
    blocks: ReferenceBlocks, *, levels: Sequence[float], generator: torch.Generator
) -> Tensor:
    """Draw which positions are visible (Section "Partial-mask teacher training", Appendix 8.1).

    Each block draws one level ``r`` uniformly from ``levels``; each of its non-anchor positions
    is then revealed independently with probability ``r``. The anchor is always visible;
    positions past the end of the sequence have no token to reveal and stay masked.

    Args:
        levels: reveal probabilities in [0, 1), see :func:`reveal_levels`.
        generator: on the CPU.

    Returns:
        [N, B] bool, on the CPU where the draw happens.
    """
    count, block_size = blocks.tokens.shape
    level = torch.tensor(levels)[torch.randint(len(levels), (count,), generator=generator)]
    revealed = torch.rand(count, block_size, generator=generator) < level[:, None]
    revealed &= blocks.inside.cpu()
    revealed[:, 0] = True
    return revealed


def corrupt(tokens: Tensor, revealed: Tensor, *, mask_token_id: int) -> Tensor:
    """Build ``x^r``: the token where revealed, ``mask_token_id`` elsewhere. Shapes [N, B]."""
    return torch.where(revealed, tokens, mask_token_id)
