"""Optional weights of Stage II: less supervision after the teacher leaves the reference.

Shapes: N blocks, B block size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def first_mismatch(endpoint: Tensor, reference: Tensor, scored: Tensor) -> Tensor:
    """``d``: the first scored position where the endpoint differs; B when there is none.

    Blocks [..., B], of any number of leading dimensions -> [...].
    """
    differs = scored & (endpoint != reference)
    block_size = endpoint.shape[-1]
    position = torch.arange(block_size, device=endpoint.device)
    return torch.where(differs, position, block_size).amin(dim=-1)


def agreement_weights(
    endpoint: Tensor,
    reference: Tensor,
    scored: Tensor,
    *,
    first: float | None = None,
    decay: float | None = None,
) -> Tensor:
    """``w_i = 1`` before the first mismatch d, ``first * decay^(i-d)`` from it on (Eq. 11,
    reconstructed).

    Args:
        endpoint, reference: [N, B] int64, ``x_0`` and ``z``.
        scored: [N, B] bool.
        first: the weight at the mismatch, in (0, 1]; None switches the weights off (all ones).
        decay: beta in (0, 1); None keeps ``first`` flat over the tail.

    Returns:
        [N, B] float32.
    """
    if first is None:
        return torch.ones(endpoint.shape, device=endpoint.device)
    start = first_mismatch(endpoint, reference, scored)[:, None]
    past = torch.arange(endpoint.shape[1], device=endpoint.device) - start
    tail = first * (1.0 if decay is None else decay) ** past.clamp(min=0).float()
    return torch.where(past < 0, 1.0, tail)
