"""Features in 8 bits: float8 e4m3 with one float32 scale per token and layer. Pure functions.

Shapes: S tokens, L layers, H the target's hidden size.

With ``s`` the scale of a token and layer, every element x of it comes back as y with

    |y - x| <= |x| / 16       where |x| >= s / 64    (3 mantissa bits)
    |y - x| <= s / 1024       elsewhere              (half a step of e4m3's subnormals)

and ``s`` is the largest magnitude / 448, so the second bound is the largest magnitude / 458,752.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max  # 448
#: Below it a quotient by the scale would lose digits; only rows of about 1e-36 get there.
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny


def encode_float8(states: Tensor, *, layers: int) -> tuple[Tensor, Tensor]:
    """States as e4m3 [S, L * H] and their scales, float32 [S, L].

    Args:
        states: [S, L * H] of any floating dtype.
        layers: L.

    A row of zeros has scale 1. Raises: ``ValueError`` for states that are not finite.
    """
    rows = states.float().unflatten(-1, (layers, -1))
    largest = rows.abs().amax(-1, keepdim=True)
    if not bool(torch.isfinite(largest).all()):
        raise ValueError("states that are not finite have no 8-bit form")
    scales = (largest / LARGEST).clamp(min=_SMALLEST_SCALE)
    scales = torch.where(largest == 0, torch.ones_like(scales), scales)
    # The quotient can end a rounding error above the largest value, which e4m3 has no infinity for.
    values = (rows / scales).clamp(-LARGEST, LARGEST).to(FLOAT8)
    return values.flatten(-2), scales.squeeze(-1)


def decode_float8(values: Tensor, scales: Tensor) -> Tensor:
    """The inverse of :func:`encode_float8`: float32 [S, L * H] of e4m3 [S, L * H], scales [S, L].

    A NaN among values or scales gives NaN. Raises: ``ValueError`` for shapes that do not fit.
    """
    if values.dim() != 2 or scales.dim() != 2 or values.shape[0] != scales.shape[0]:
        raise ValueError(f"values {tuple(values.shape)} and scales {tuple(scales.shape)}")
    if scales.shape[1] == 0 or values.shape[1] % scales.shape[1]:
        raise ValueError(f"width {values.shape[1]} is not a multiple of {scales.shape[1]} layers")
    rows = values.float().unflatten(-1, (scales.shape[1], -1))
    return (rows * scales[..., None]).flatten(-2)
