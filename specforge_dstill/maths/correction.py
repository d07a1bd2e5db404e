"""A trained correction of logits, of low rank: what it adds, and its gradients tile by tile.

Shapes: R rows, V vocabulary, r rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Correction:
    """Of logits: ``logits + latents @ weight.T``; trained.

    Attributes:
        latents: [R, r].
        weight: [V, r].
    """

    latents: Tensor
    weight: Tensor


@dataclass(frozen=True)
class CorrectionGradients:
    """A correction, and its gradients as they grow tile by tile.

    The gradients are those of ``sum_r row_weight_r loss_r``.

    Attributes:
        latents: [R, r], of the correction.
        weight: [V, r], of the correction.
        row_weights: [R], constants.
        by_latents: [R, r], like the latents; a row's is 0 until its tile is learned from.
        by_weight: [V, r], in the precision of the row weights: the sum over the tiles so far.
    """

    latents: Tensor
    weight: Tensor
    row_weights: Tensor
    by_latents: Tensor
    by_weight: Tensor

    @classmethod
    def of(cls, latents: Tensor, weight: Tensor, row_weights: Tensor) -> CorrectionGradients:
        """Of no tile yet; arguments as the attributes."""
        # Sums over many tiles are kept in the rows' precision.
        by_weight = torch.zeros_like(weight, dtype=row_weights.dtype)
        return cls(latents, weight, row_weights, torch.zeros_like(latents), by_weight)

    def add_to(self, logits: Tensor, tile: slice, *, sign: int = 1) -> None:
        """Correct a tile's logits [tile, V] in place; a ``sign`` of -1 takes it back."""
        latents = self.latents[tile]
        if latents.dtype == logits.dtype == self.weight.dtype:
            logits.addmm_(latents, self.weight.T, alpha=sign)
        else:
            logits.add_(latents.to(self.weight.dtype) @ self.weight.T, alpha=sign)

    def learn(self, slope: Tensor, tile: slice) -> None:
        """Add a tile's gradients.

        Args:
            slope: [tile, V], the gradient of each row's loss with respect to its logits, not yet
                weighted.
            tile: its rows, once each.
        """
        weights = self.row_weights[tile, None]
        slope = slope.to(self.weight.dtype)
        self.by_latents[tile] = (slope @ self.weight) * weights
        self.by_weight.add_(slope.T @ (self.latents[tile] * weights).to(slope.dtype))
