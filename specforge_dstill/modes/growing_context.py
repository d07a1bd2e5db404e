"""The target context's keys and values while it grows, for decoding.

Shapes: S context length, B slots of a block, D head dimension; one sequence.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

_SMALLEST = 256


class GrowingContext:
    """Keys and values of a context, each position projected once and kept for good.

    It plays the part of transformers' Cache: an attention layer hands it the keys and values of
    new context and of a block, and gets back those to attend to. A block's are written behind the
    context and over the last block's: memory is copied only when it must grow, and it doubles.
    """

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._length = 0

    @property
    def length(self) -> int:
        """S, the positions that are kept."""
        return self._length

    def advance(self, count: int) -> None:
        """Keep the first ``count`` positions of what all layers just handed over."""
        self._length += count

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, cache_kwargs: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Put new context and block behind what is kept; all of it is given back.

        Shapes: [1, key/value heads, new + B, D] -> [1, key/value heads, S + new + B, D].
        """
        end = self._length + keys.shape[2]
        memory = tuple(
            self._put(kept, states, end)
            for kept, states in zip(
                self._layers.get(layer_idx, (keys[:, :, :0], values[:, :, :0])),
                (keys, values),
                strict=True,
            )
        )
        self._layers[layer_idx] = (memory[0], memory[1])
        return memory[0][:, :, :end], memory[1][:, :, :end]

    def _put(self, kept: Tensor, states: Tensor, end: int) -> Tensor:
        if kept.shape[2] < end:
            batch, heads, _, size = states.shape
            larger = states.new_empty(batch, heads, max(_SMALLEST, 2 * end), size)
            larger[:, :, : self._length] = kept[:, :, : self._length]
            kept = larger
        kept[:, :, self._length : end] = states
        return kept
