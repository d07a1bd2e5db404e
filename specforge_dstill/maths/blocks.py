"""Reference blocks cut out of one sequence.

Shapes: N blocks, B block size, S sequence length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ReferenceBlocks:
    """What the data says about each position of N blocks.

    Attributes:
        tokens: [N, B] int64, the sequence's tokens ``z``; 0 past the end of the sequence.
        inside: [N, B] bool, the position lies in the sequence.
        scored: [N, B] bool, the position is supervised; never the anchor.
    """

    tokens: Tensor
    inside: Tensor
    scored: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


def reference_blocks(
    input_ids: Tensor, loss_mask: Tensor, anchors: Tensor, *, block_size: int
) -> ReferenceBlocks:
    """Cut the blocks that start at ``anchors``.

    A block may run past the end of its sequence: those positions have no reference token, so
    they are neither inside nor scored. Positions of another turn are inside but not scored.

    Args:
        input_ids: [S] int64, without padding.
        loss_mask: [S].
        anchors: [N] int64.
    """
    positions = anchors[:, None] + torch.arange(block_size, device=anchors.device)
    inside = positions < len(input_ids)
    safe = positions.clamp(max=len(input_ids) - 1)
    tokens = torch.where(inside, input_ids[safe], 0)
    scored = inside & (loss_mask[safe] > 0)
    scored[:, 0] = False
    return ReferenceBlocks(tokens=tokens, inside=inside, scored=scored)
