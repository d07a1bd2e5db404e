"""Stage I's objective as one weight per row.

The loss is linear in the rows' negative log-likelihoods, so Eq. 2 and Eq. 6 reduce to a
weight for each masked, scored position. The LM head then runs over those rows alone.

Shapes: N blocks, B block size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def position_log_weights(block_size: int, *, gamma: float | None = None) -> Tensor:
    """``log w_pos(i) = -(i - 1) / gamma`` for positions 0..B-1; zeros when ``gamma`` is None.

    Position 0 is the anchor, which is never scored; its value is not used.

    Raises:
        ValueError: a ``gamma`` of 0 or less.
    """
    if gamma is None:
        return torch.zeros(block_size, dtype=torch.float64)
    if gamma <= 0:
        raise ValueError(f"gamma must be positive, got {gamma}")
    return -(torch.arange(block_size, dtype=torch.float64) - 1.0) / gamma


def mask_count_weights(counts: Tensor, *, block_size: int, alpha_m: float = 0.0) -> Tensor:
    """``w_block = |M|^alpha_m / mean_m(m^alpha_m)``, m = 1..B-1 (Eq. 7, reconstructed).

    Args:
        counts: [N], the number of masked, scored positions of each block.

    Returns:
        [N]; a block with no masked position gets 0.
    """
    masked = counts.to(torch.float32)
    reference = (torch.arange(1, block_size, device=counts.device).float() ** alpha_m).mean()
    return torch.where(counts > 0, masked**alpha_m / reference, 0.0)


def teacher_row_weights(
    masked: Tensor, *, gamma: float | None = None, alpha_m: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Weights of Eq. 6, whose defaults give Eq. 2.

    ``L = (1 / blocks) * sum_{n,i} weight[n,i] * nll[n,i]`` with
    ``weight[n,i] = w_block(n) * w_pos(i) / sum_{j in M_n} w_pos(j)`` on masked positions.

    Args:
        masked: [N, B] bool, the masked *and scored* positions M of each block.

    Returns:
        weights [N, B] float32 (0 outside M), and the number of non-empty blocks (scalar): the
        denominator of the arithmetic mean, summed over ranks before dividing.
    """
    block_size = masked.shape[1]
    logs = position_log_weights(block_size, gamma=gamma).to(masked.device)
    # By softmax: for a small gamma every w_pos of a block may be too small for a float.
    weights = torch.where(masked, logs, -torch.inf).softmax(dim=1)
    weights = torch.where(masked, weights, 0.0).float()
    counts = masked.sum(dim=1)
    if alpha_m:
        block = mask_count_weights(counts, block_size=block_size, alpha_m=alpha_m)
        weights = weights * block[:, None]
    return weights, (counts > 0).sum()
