"""The target context's keys and values, projected once for repeated passes over it.

Shapes: b samples, N blocks, B slots of a block, S context length, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ContextCache:
    """Keys and values of the context, kept for repeated passes over the same features.

    It plays the part of transformers' Cache: an attention layer hands it the keys and values of
    context and blocks, and gets back those to attend to. Only the context's are kept.
    """

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._own_length = 0

    @property
    def is_filled(self) -> bool:
        return bool(self._layers)

    def begin(self, *, own_length: int) -> None:
        """Announce a pass whose last ``own_length`` positions belong to blocks."""
        self._own_length = own_length

    def select(self, rows: Tensor) -> None:
        """Go on with these samples only; [b'] int64."""
        self._layers = {
            layer: (keys[rows], values[rows]) for layer, (keys, values) in self._layers.items()
        }

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, cache_kwargs: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Keep the context on the first pass, put it before the blocks on the others.

        Shapes: [b, key/value heads, S + N * B or N * B, D].
        """
        if layer_idx in self._layers:
            context_keys, context_values = self._layers[layer_idx]
            return torch.cat([context_keys, keys], 2), torch.cat([context_values, values], 2)
        length = keys.shape[2] - self._own_length
        self._layers[layer_idx] = (keys[:, :, :length].clone(), values[:, :, :length].clone())
        return keys, values
