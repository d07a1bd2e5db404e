"""Which positions of a sequence may start a block, and two ways to choose among them.

Shapes: S sequence length, A valid anchors, n drawn anchors.
"""

from __future__ import annotations

import torch
from torch import Tensor


def valid_anchors(loss_mask: Tensor) -> Tensor:
    """Positions whose own token and next token are both scored.

    The rule is SpecForge's: the anchor is a token that the target has generated, and the
    block's first target is supervised.

    Args:
        loss_mask: [S], non-zero where a token is scored.

    Returns:
        [A] int64, ascending.
    """
    scored = loss_mask > 0
    return (scored[:-1] & scored[1:]).nonzero().squeeze(1)


def draw_anchors(loss_mask: Tensor, *, count: int | None, generator: torch.Generator) -> Tensor:
    """Draw at most ``count`` distinct valid anchors uniformly; all of them when ``count`` is None.

    Args:
        loss_mask: [S].
        count: the most anchors to return.
        generator: the source of randomness; untouched when every anchor is taken.

    Returns:
        [n] int64, ascending.
    """
    anchors = valid_anchors(loss_mask)
    if count is None or len(anchors) <= count:
        return anchors
    chosen = torch.randperm(len(anchors), generator=generator)[:count]
    return anchors[chosen.sort().values]


def spread_anchors(loss_mask: Tensor, *, count: int) -> Tensor:
    """At most ``count`` valid anchors, evenly spread: the middle one of each of so many parts.

    Nothing is drawn: the same sample gives the same anchors, whenever it is asked.

    Args:
        loss_mask: [S].
        count: the most anchors to return.

    Returns:
        [n] int64, ascending.
    """
    anchors = valid_anchors(loss_mask)
    if len(anchors) <= count:
        return anchors
    middles = 2 * torch.arange(count, device=anchors.device) + 1
    return anchors[middles * len(anchors) // (2 * count)]
