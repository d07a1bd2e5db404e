"""How far a draft's distribution is from the target's, and so how often its token is accepted.

With ``p`` the draft's and ``q`` the target's probabilities, a token drawn from ``p`` is accepted
with probability ``sum min(p, q) = 1 - L1 / 2``, where ``L1 = sum |p - q|``. DSpark trains on L1,
and its confidence head on that probability.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specforge_dstill.maths.logits import ROWS_AT_ONCE


def add_distance(
    logits: Tensor,
    target_logits: Tensor,
    gradient: Tensor | None,
    *,
    share: float,
    counts: Tensor | None = None,
) -> Tensor:
    """``L1`` of each row; ``share`` times its gradient is added to ``gradient``.

    With ``s = sign(p - q)`` the gradient with respect to logit v is ``p_v (s_v - sum_u p_u s_u)``.

    Args:
        logits, target_logits: [R, V]; neither is changed.
        gradient: [R, V], with respect to ``logits``; None asks for none.
        counts: [R], a factor of each row's gradient; None for 1.

    Returns:
        [R].
    """
    distances = [logits.new_zeros(0)]
    for start in range(0, len(logits), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        p = logits[rows].softmax(dim=1)
        difference = p - target_logits[rows].softmax(dim=1)
        distances.append(difference.abs().sum(dim=1))
        if gradient is not None and share:
            sign = difference.sign_()
            mean = (p * sign).sum(dim=1, keepdim=True)
            slope = sign.sub_(mean).mul_(p)
            if counts is not None:
                slope.mul_(counts[rows, None])
            gradient[rows].add_(slope, alpha=share)
    return torch.cat(distances)


def acceptance(distance: Tensor) -> Tensor:
    """The probability that a token is accepted, of its position's L1."""
    return (1 - distance / 2).clamp(0, 1)
