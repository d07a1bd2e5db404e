"""The target's LM head: frozen, so logits can go into memory that is used again.

Shapes: R rows, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FrozenHead:
    """``hidden @ weight.T + bias``, perhaps soft-capped.

    Attributes:
        weight: [V, H].
        bias: [V].
        softcap: Gemma's final soft-capping, ``cap tanh(logits / cap)``.
    """

    weight: Tensor
    bias: Tensor | None = None
    softcap: float | None = None

    @torch.no_grad()
    def logits(self, rows: Tensor, *, out: Tensor) -> Tensor:
        """[R, H] -> [R, V] in the precision of ``out``, which takes the result."""
        if rows.dtype == out.dtype:
            torch.mm(rows, self.weight.T, out=out)
        else:
            out.copy_(rows @ self.weight.T)
        if self.bias is not None:
            out += self.bias
        return out if self.softcap is None else out.div_(self.softcap).tanh_().mul_(self.softcap)

    def backward(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Gradient with respect to the rows, [R, H]; uses up gradient and logits [R, V]."""
        if self.softcap is not None:
            gradient.mul_(logits.div_(self.softcap).square_().neg_().add_(1))
        return gradient.to(self.weight.dtype) @ self.weight


class ReusedLogits:
    """A head as a function, [R, H] -> [R, V] float32, valid until the next call.

    Memory for a tile of logits is made once and grows to the largest tile: on a CPU to allocate
    it anew for every tile takes a good part of the time to fill it.
    """

    def __init__(self, head: FrozenHead) -> None:
        self._head = head
        self._memory = head.weight.new_empty(0, len(head.weight), dtype=torch.float32)

    def __call__(self, rows: Tensor) -> Tensor:
        if len(self._memory) < len(rows):
            size = (len(rows), self._memory.shape[1])
            self._memory = self._memory.new_empty(size)
        return self._head.logits(rows, out=self._memory[: len(rows)])
