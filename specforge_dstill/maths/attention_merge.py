"""Attention over keys that were attended to in parts.

With ``o_p`` the attention over part ``p`` alone and ``l_p`` the log of its sum of exponentials,
attention over all parts is ``sum_p softmax(l)_p o_p``.

Shapes: Q queries, D head dimension; leading dimensions are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PartialAttention:
    """Attention over some of the keys.

    Attributes:
        output: [..., Q, D]; finite, also where no key was seen.
        log_sum_exp: [..., Q] of the scaled scores; -inf where no key was seen.
    """

    output: Tensor
    log_sum_exp: Tensor


def merge_attention(parts: Sequence[PartialAttention]) -> Tensor:
    """Attention over the keys of all parts, [..., Q, D] in the outputs' dtype.

    Every query must have seen a key in some part. The sum is formed in float32 at least.
    """
    shares = torch.stack([part.log_sum_exp for part in parts]).softmax(dim=0)[..., None]
    weighted = (share * part.output for share, part in zip(shares, parts, strict=True))
    merged: Tensor = sum(weighted, start=torch.zeros_like(shares[0]))
    return merged.to(parts[0].output.dtype)
