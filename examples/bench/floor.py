"""The floor: the floating-point operations of the matrix products that a step must do.

A product of [m, k] and [k, n] is 2 m k n operations. Counted: every block position through every
layer, the context up to the last anchor, the keys each position may see, and the LM head for
supervised rows only. The backward pass adds a product for the weights and one for the input,
where there is a trained weight or something trained before the input. Recomputation, softmax,
norms, optimizer and memory traffic are left out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from shapes import Shape
from torch import Tensor


@dataclass(frozen=True)
class Operations:
    """Floating-point operations by component."""

    context: float = 0.0
    projections: float = 0.0
    attention: float = 0.0
    mlp: float = 0.0
    lm_head: float = 0.0
    gradients: float = 0.0

    @property
    def total(self) -> float:
        return sum(asdict(self).values())


def step_operations(shape: Shape, anchors: Tensor, *, rows: int) -> Operations:
    """Forward and backward of one training step.

    Args:
        anchors: [b, N], the blocks of each sample.
        rows: supervised positions, through the LM head.
    """
    forward = _forward(shape, anchors, rows=rows)
    layers = forward.projections + forward.attention + forward.mlp
    # The fusing layer's input is data, and the LM head is frozen: one product each. Every other
    # has two; even the first layer's input, for the weights of the norm before it.
    fuse, context_keys = _context(shape, anchors)
    gradients = fuse + 2 * context_keys + 2 * layers + forward.lm_head
    return Operations(**{**asdict(forward), "gradients": gradients})


def collection_operations(shape: Shape, anchors: Tensor, *, rows: int) -> Operations:
    """K passes over the blocks, the context projected once; ``rows``: over all passes."""
    once, head = _forward(shape, anchors, rows=0), _forward(shape, anchors, rows=rows)
    return Operations(
        context=once.context,
        projections=shape.steps * once.projections,
        attention=shape.steps * once.attention,
        mlp=shape.steps * once.mlp,
        lm_head=head.lm_head,
    )


def _forward(shape: Shape, anchors: Tensor, *, rows: int) -> Operations:
    tokens = anchors.numel() * shape.block_size
    seen = float((anchors + shape.block_size).sum()) * shape.block_size
    width = shape.heads * shape.head_dim
    return Operations(
        context=sum(_context(shape, anchors)),
        projections=shape.draft_layers * _projections_of_blocks(shape, anchors),
        attention=shape.draft_layers * 2 * 2.0 * seen * width,
        mlp=shape.draft_layers * 3 * 2.0 * tokens * shape.hidden * shape.intermediate,
        lm_head=2.0 * rows * shape.hidden * shape.vocabulary,
    )


def _context(shape: Shape, anchors: Tensor) -> tuple[float, float]:
    """Fusing the target's layers, and the keys and values of all layers."""
    positions = float(anchors.max(dim=1).values.sum())
    fuse = 2.0 * positions * shape.target_layers * shape.hidden**2
    keys = 2 * 2.0 * positions * shape.hidden * shape.kv_heads * shape.head_dim
    return fuse, shape.draft_layers * keys


def _projections_of_blocks(shape: Shape, anchors: Tensor) -> float:
    """Query, key, value and output of one layer."""
    tokens = anchors.numel() * shape.block_size
    columns = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    return 2.0 * tokens * shape.hidden * columns
