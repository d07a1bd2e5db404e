"""The loss of hidden rows through a frozen LM head, one tile of logits alive at a time.

Because the head is frozen, the gradient with respect to the hidden rows is formed in the
forward pass, tile by tile: the logits never exist whole and the matrix product is not repeated
in the backward pass. The same goes for a trained correction of low rank (DSpark's Markov head).

Shapes: R rows, H hidden size, V vocabulary, k retained ids, r rank of the correction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.maths.correction import Correction, CorrectionGradients
from specforge_dstill.maths.distillation_loss import Retained, row_loss
from specforge_dstill.maths.frozen_head import FrozenHead
from specforge_dstill.maths.logits import largest
from specforge_dstill.maths.target_distance import add_distance


@dataclass(frozen=True)
class TargetRows:
    """What the target says of each row.

    Attributes:
        states: [R, H], what the head makes the target's own logits of.
        share: of the L1 distance between draft and target in the loss.
        counts: [R] float32, 1 where the target's rows are of the draft's own context and 0
            elsewhere, where nothing is learned from them; None for everywhere.
    """

    states: Tensor
    share: float = 0.0
    counts: Tensor | None = None

    def counted(self, rows: Tensor) -> Tensor:
        """Rows [R], 0 where they do not count."""
        return rows if self.counts is None else self.counts * rows


@dataclass(frozen=True)
class LinearLoss:
    """What :func:`linear_loss` returns.

    Attributes:
        numerator: scalar, ``sum_r weight_r (scale ((1-alpha) nll_r + alpha kl_r) + share counts_r
            l1_r)``, differentiable with respect to the hidden rows and to what corrects their
            logits.
        nll, kl: [R] float32, detached.
        predicted: [R] int64, the most probable legal token of each row.
        l1: [R], detached; zeros where the target's rows are not known.
    """

    numerator: Tensor
    nll: Tensor
    kl: Tensor
    predicted: Tensor
    l1: Tensor


def linear_loss(
    hidden: Tensor,
    head: FrozenHead,
    targets: Tensor,
    weights: Tensor,
    *,
    mask_token_id: int,
    retained: Retained | None = None,
    alpha: float = 0.0,
    scale: float = 1.0,
    correction: Correction | None = None,
    target: TargetRows | None = None,
    rows_per_tile: int = 1024,
) -> LinearLoss:
    """Weighted sum of Eq. 3 over rows whose logits are ``head``'s.

    A numerator: the caller divides it by its denominator, summed over all ranks.

    Args:
        hidden: [R, H]; R may be 0, and the numerator is then 0 and still differentiable.
        head: the frozen LM head; no gradient is formed for it, whatever it asks for.
        targets: [R] int64.
        weights: [R] float32, constants.
        mask_token_id: never a legal prediction.
        retained: the teacher's distribution (Stage II); None for cross-entropy alone.
        alpha: the KL's share; 0 without the teacher's distribution.
        scale: of Eq. 3 beside the L1 distance (DSpark's Stage I).
        correction: of the logits, after a head's soft-capping.
        target: the target's distributions; None where nothing is learned from them.
        rows_per_tile: bounds the memory of the logits, twice ``rows_per_tile * V`` floats (three
            times with the target's); and half a ``rows_per_tile * V`` more, for one rounded
            copy at a time, when head or correction are in half precision.

    Products are formed in the head's precision; autocast does not reach in here.

    Raises:
        ValueError: ``rows_per_tile`` below 1, a share of the KL without the teacher's distribution,
            or retained ids that leave no other.
    """
    if rows_per_tile < 1:
        raise ValueError(f"rows_per_tile must be at least 1, got {rows_per_tile}")
    if retained is None and alpha:
        raise ValueError(f"alpha needs the teacher's distribution, got {alpha} without one")
    if retained is not None and retained.ids.shape[1] >= len(head.weight):
        raise ValueError("the retained ids must leave an id out")
    terms = _Terms(head, targets, weights, mask_token_id, retained, alpha, scale, target)
    rows = hidden.to(head.weight.dtype)
    latents = None if correction is None else correction.latents
    weight = None if correction is None else correction.weight
    with torch.autocast(hidden.device.type, enabled=False):
        return LinearLoss(*_TiledLoss.apply(rows, latents, weight, terms, rows_per_tile))


@dataclass(frozen=True)
class _Terms:
    """The constants of the loss: all but what is differentiated."""

    head: FrozenHead
    targets: Tensor
    weights: Tensor
    mask_token_id: int
    retained: Retained | None
    alpha: float
    scale: float
    target: TargetRows | None

    def evaluate(
        self, tile: slice, logits: Tensor, memory: Tensor, target_memory: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """nll, kl and l1 of the tile's rows, and the gradient with respect to their logits."""
        loss = row_loss(
            logits,
            self.targets[tile],
            retained=self.retained[tile] if self.retained else None,
            alpha=self.alpha,
            out=memory,
        )
        if self.scale != 1:
            loss.gradient.mul_(self.scale)
        l1 = torch.zeros_like(loss.nll)
        if self.target is not None:
            assert target_memory is not None
            own = self.head.logits(
                self.target.states[tile].to(self.head.weight.dtype), out=target_memory
            )
            counts = None if self.target.counts is None else self.target.counts[tile]
            l1 = add_distance(logits, own, loss.gradient, share=self.target.share, counts=counts)
        return loss.nll, loss.kl, l1, loss.gradient

    def numerator(self, nll: Tensor, kl: Tensor, l1: Tensor) -> Tensor:
        total = self.scale * ((1 - self.alpha) * nll + self.alpha * kl)
        if self.target is not None:
            total = total + self.target.share * self.target.counted(l1)
        return (self.weights * total).sum()


class _TiledLoss(torch.autograd.Function):
    """Forward computes the gradients too; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        latents: Tensor | None,
        weight: Tensor | None,
        terms: _Terms,
        rows_per_tile: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows, head, weights = len(hidden), terms.head, terms.weights
        nll, kl, l1 = hidden.new_zeros(3, rows, dtype=weights.dtype)
        predicted = torch.zeros(rows, dtype=torch.int64, device=hidden.device)
        gradient = torch.zeros_like(hidden)
        correction = None
        if latents is not None and weight is not None:
            correction = CorrectionGradients.of(latents, weight, weights)
        # The same tiles serve all rows: to allocate them anew costs a CPU as much as to fill them.
        tiles = 2 if terms.target is None else 3
        size = (tiles, min(rows, rows_per_tile), len(head.weight))
        products, slopes, *more = hidden.new_empty(size, dtype=weights.dtype)
        for start in range(0, rows, rows_per_tile):
            tile = slice(start, start + rows_per_tile)
            count = len(hidden[tile])
            logits = head.logits(hidden[tile], out=products[:count])
            if correction is not None:
                correction.add_to(logits, tile)
            nll[tile], kl[tile], l1[tile], slope = terms.evaluate(
                tile, logits, slopes[:count], more[0][:count] if more else None
            )
            predicted[tile] = _predicted(logits, terms.mask_token_id)
            if any(ctx.needs_input_grad):
                if correction is not None:
                    correction.learn(slope, tile)
                    if head.softcap is not None:
                        correction.add_to(logits, tile, sign=-1)
                gradient[tile] = head.backward(slope, logits) * weights[tile, None]
        by_latents = by_weight = None
        if correction is not None:
            by_latents, by_weight = correction.by_latents, correction.by_weight
        ctx.save_for_backward(gradient, by_latents, by_weight)
        ctx.mark_non_differentiable(nll, kl, predicted, l1)
        return terms.numerator(nll, kl, l1), nll, kl, predicted, l1

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        scaled = (
            None if saved is None else gradients[0].to(saved.dtype) * saved
            for saved in ctx.saved_tensors
        )
        return (*scaled, None, None)


def _predicted(logits: Tensor, mask_token_id: int) -> Tensor:
    """The most probable legal token of each row [R]; the logits are as they were on return."""
    illegal = logits[:, mask_token_id].clone()
    logits[:, mask_token_id] = -torch.inf
    predicted = largest(logits, 1)[1].squeeze(1)
    logits[:, mask_token_id] = illegal
    return predicted
