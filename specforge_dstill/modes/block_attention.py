"""Which keys a block may attend to.

A drafter's keys are the S context positions followed by the tokens of all N blocks. A block
sees the context strictly before its anchor and its own B positions, nothing else. On a GPU
that is a flex-attention block mask; grouped_attention.py and two_call_attention.py do without one.

A :class:`BlockLayout` enters SpecForge's layers in the place of the mask, through transformers'
public AttentionInterface: the layers run as they are, so FSDP, DDP and gradient checkpointing keep
working.

Shapes: b samples, N blocks, B slots of a block, S context length, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import AttentionInterface


@dataclass(frozen=True)
class BlockLayout:
    """Where blocks sit and what they may see.

    Attributes:
        anchors: [b, N] int64, the position of each block's anchor. Sorted anchors make groups
            whose context is short; correctness does not depend on the order.
        context_length: S.
        slots: B, of a block: its positions, or one less where slots predict the next one.
        window: sliding layers see the last ``window`` positions only; None for full attention.
        causal: whether a position sees only earlier positions of its own block.
        blocks_per_group: how many blocks attend at once without flex attention.
    """

    anchors: Tensor
    context_length: int
    slots: int
    window: int | None = None
    causal: bool = False
    blocks_per_group: int = 8

    def visible_context(self, anchors: Tensor, length: int) -> Tensor:
        """Context positions 0..length-1 that each position of the blocks sees. [n, B, length]."""
        position = torch.arange(length, device=anchors.device)
        visible = position < anchors[:, None, None]
        if self.window is not None:
            offset = torch.arange(self.slots, device=anchors.device)
            # The querying position takes one place of the window itself.
            lowest = anchors[:, None] + offset - (self.window - 1)
            visible = visible & (position >= lowest[:, :, None])
        return visible.expand(-1, self.slots, -1)

    def visible_block(self) -> Tensor:
        """Positions of its own block that each position sees. [B, B] bool."""
        ones = torch.ones(self.slots, self.slots, dtype=torch.bool, device=self.anchors.device)
        return ones.tril() if self.causal else ones

    def visible_blocks(self, count: int) -> Tensor:
        """The same for blocks side by side, which do not see each other. [n * B, n * B] bool."""
        same = torch.eye(count, dtype=torch.bool, device=self.anchors.device)
        seen = same[:, None, :, None] & self.visible_block()[None, :, None, :]
        return seen.reshape(count * self.slots, count * self.slots)

    @cached_property
    def group_lengths(self) -> list[list[int]]:
        """The context that any block of each group of each sample sees: up to its last anchor.

        Made once: on a GPU reading a length waits for it.
        """
        if not self.anchors.numel():
            return [[] for _ in self.anchors]
        parts = self.anchors.split(self.blocks_per_group, dim=1)
        last = torch.stack([part.amax(dim=1) for part in parts], dim=1)
        return last.clamp(max=self.context_length).tolist()

    def visible(self, anchors: Tensor, length: int) -> Tensor:
        """What blocks at ``anchors`` [n] see of ``length`` context positions and themselves.

        [n * B, length + n * B] bool.
        """
        context = self.visible_context(anchors, length).flatten(0, 1)
        positions = len(context)
        return torch.cat([context, self._group_itself[:positions, :positions]], dim=1)

    @cached_property
    def _group_itself(self) -> Tensor:
        """:meth:`visible_blocks` of a whole group, of which a last, smaller one is a corner."""
        return self.visible_blocks(min(self.blocks_per_group, self.anchors.shape[1]))

    def dense_mask(self) -> Tensor:
        """The whole mask, [b, 1, N * B, S + N * B] bool: for eager attention and for tests."""
        samples, count = self.anchors.shape
        context = self.visible_context(self.anchors.flatten(), self.context_length)
        context = context.reshape(samples, count * self.slots, self.context_length)
        own = self.visible_blocks(count).expand(samples, -1, -1)
        return torch.cat([context, own], dim=-1)[:, None]

    def flex_mask(self) -> BlockMask:
        """The same mask for flex attention; compiled where that is supported."""
        samples, count = self.anchors.shape
        anchors, length, size = self.anchors, self.context_length, self.slots

        def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            block, offset = query // size, query % size
            anchor = anchors[b, block]
            context = (key < length) & (key < anchor)
            if self.window is not None:
                context = context & (key >= anchor + offset - (self.window - 1))
            own = (key >= length) & ((key - length) // size == block)
            if self.causal:
                own = own & ((key - length) % size <= offset)
            return context | own

        return create_block_mask(
            visible,
            B=samples,
            H=None,
            Q_LEN=count * size,
            KV_LEN=length + count * size,
            device=self.anchors.device,
            _compile=self.anchors.is_cuda,
        )


# Of queries [b, heads, N * B, D] over keys and values [b, key/value heads, S + N * B, D], with the
# factor of the scores: [b, N * B, heads, D].
Attend = Callable[[Tensor, Tensor, Tensor, BlockLayout, float], Tensor]


def register_attention(name: str, attend: Attend) -> None:
    """Let a model's ``_attn_implementation`` name ``attend``, to which masks are layouts.

    There is no dropout: a drafter with attention dropout is refused when it is built.
    """

    def adapted(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: BlockLayout,
        scaling: float | None = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        return attend(query, key, value, attention_mask, scaling), None

    AttentionInterface.register(name, adapted)
