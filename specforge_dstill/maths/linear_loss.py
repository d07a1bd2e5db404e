"""The loss of hidden rows through a frozen LM head, one tile of logits alive at a time.

Because the head is frozen, the gradient with respect to the hidden rows is formed in the
forward pass, tile by tile: the logits never exist whole and the matrix product is not repeated
in the backward pass.

Shapes: R rows, H hidden size, V vocabulary, k retained ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.maths.distillation_loss import Retained, row_loss
from specforge_dstill.maths.frozen_head import FrozenHead
from specforge_dstill.maths.logits import largest


@dataclass(frozen=True)
class LinearLoss:
    """What :func:`linear_loss` returns.

    Attributes:
        numerator: scalar, ``sum_r weight_r ((1-alpha) nll_r + alpha kl_r)``, differentiable
            with respect to the hidden rows.
        nll, kl: [R] float32, detached.
        predicted: [R] int64, the most probable legal token of each row.
    """

    numerator: Tensor
    nll: Tensor
    kl: Tensor
    predicted: Tensor


def linear_loss(
    hidden: Tensor,
    head: FrozenHead,
    targets: Tensor,
    weights: Tensor,
    *,
    mask_token_id: int,
    retained: Retained | None = None,
    alpha: float = 0.0,
    rows_per_tile: int = 1024,
) -> LinearLoss:
    """Weighted sum of Eq. 3 over rows whose logits are ``head``'s.

    Args:
        hidden: [R, H]; R may be 0, and the numerator is then 0 and still differentiable.
        head: the frozen LM head; no gradient is formed for it, whatever it asks for.
        targets: [R] int64.
        weights: [R] float32, constants.
        mask_token_id: never a legal prediction.
        retained: the teacher's distribution (Stage II); None for cross-entropy alone.
        alpha: the KL's share.
        rows_per_tile: bounds the memory of the logits, twice ``rows_per_tile * V`` floats, and
            half as much again when the head is in half precision.

    Products are formed in the head's precision; autocast does not reach in here.

    Errors: ``ValueError`` for no rows a tile, or when the retained ids leave no other.
    """
    if rows_per_tile < 1:
        raise ValueError(f"rows_per_tile must be at least 1, got {rows_per_tile}")
    if retained is not None and retained.ids.shape[1] >= len(head.weight):
        raise ValueError("the retained ids must leave an id out")
    rows = hidden.to(head.weight.dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        numerator, nll, kl, predicted = _TiledLoss.apply(
            rows, head, targets, weights, retained, alpha, mask_token_id, rows_per_tile
        )
    return LinearLoss(numerator=numerator, nll=nll, kl=kl, predicted=predicted)


class _TiledLoss(torch.autograd.Function):
    """Forward computes the gradient too; backward only scales it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: FrozenHead,
        targets: Tensor,
        weights: Tensor,
        retained: Retained | None,
        alpha: float,
        mask_token_id: int,
        rows_per_tile: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = len(hidden)
        nll, kl = hidden.new_zeros(2, rows, dtype=weights.dtype)
        predicted = torch.zeros(rows, dtype=torch.int64, device=hidden.device)
        gradient = torch.zeros_like(hidden)
        # Two tiles serve all rows: to allocate them anew costs a CPU as much as to fill them.
        size = (2, min(rows, rows_per_tile), len(head.weight))
        products, slopes = hidden.new_empty(size, dtype=weights.dtype)
        for start in range(0, rows, rows_per_tile):
            tile = slice(start, start + rows_per_tile)
            count = len(hidden[tile])
            logits = head.logits(hidden[tile], out=products[:count])
            loss = row_loss(
                logits,
                targets[tile],
                retained=retained[tile] if retained else None,
                alpha=alpha,
                out=slopes[:count],
            )
            nll[tile], kl[tile] = loss.nll, loss.kl
            predicted[tile] = _predicted(logits, mask_token_id)
            if ctx.needs_input_grad[0]:
                gradient[tile] = head.backward(loss.gradient, logits) * weights[tile, None]
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(nll, kl, predicted)
        numerator = (weights * ((1 - alpha) * nll + alpha * kl)).sum()
        return numerator, nll, kl, predicted

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradients[0].to(gradient.dtype) * gradient, *([None] * 7)


def _predicted(logits: Tensor, mask_token_id: int) -> Tensor:
    """The most probable legal token of each row [R]; the logits are as they were on return."""
    illegal = logits[:, mask_token_id].clone()
    logits[:, mask_token_id] = -torch.inf
    predicted = largest(logits, 1)[1].squeeze(1)
    logits[:, mask_token_id] = illegal
    return predicted
