"""Which keys a block may attend to, and the attention over groups of blocks.

A drafter's keys are the S context positions followed by the tokens of all N blocks. A block
sees the context strictly before its anchor and its own B positions, nothing else. On a GPU
that is a flex-attention block mask. Elsewhere a dense mask would be (N * B) x (S + N * B), at
the paper's sizes 8192 x 32768, so :func:`grouped_attention` works on groups of blocks, each
with only the context its anchors can see.

It enters SpecForge's layers through transformers' public AttentionInterface: the layers run as
they are (so FSDP, DDP and gradient checkpointing keep working), with a :class:`BlockLayout` in
the place of the mask.

Shapes: b samples, N blocks, B block size, S context length, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

GROUPED_ATTENTION = "dstill_grouped_sdpa"


@dataclass(frozen=True)
class BlockGroup:
    """Neighbouring blocks that attend together.

    Attributes:
        context_length: L, how much of the context any of them sees.
        visible: [P, L + P] bool, what each of the P positions of the blocks sees.
    """

    context_length: int
    visible: Tensor


@dataclass(frozen=True)
class BlockLayout:
    """Where blocks sit and what they may see.

    Attributes:
        anchors: [b, N] int64, the position of each block's anchor. Sorted anchors make groups
            whose context is short; correctness does not depend on the order.
        context_length: S.
        block_size: B.
        window: sliding layers see the last ``window`` positions only; None for full attention.
        causal: whether a position sees only earlier positions of its own block.
        blocks_per_group: bounds the memory of :func:`grouped_attention`.
    """

    anchors: Tensor
    context_length: int
    block_size: int
    window: int | None = None
    causal: bool = False
    blocks_per_group: int = 8

    def visible_context(self, anchors: Tensor, length: int) -> Tensor:
        """Context positions 0..length-1 that each position of the blocks sees. [n, B, length]."""
        position = torch.arange(length, device=anchors.device)
        visible = position < anchors[:, None, None]
        if self.window is not None:
            offset = torch.arange(self.block_size, device=anchors.device)
            # The querying position takes one place of the window itself.
            lowest = anchors[:, None] + offset - (self.window - 1)
            visible = visible & (position >= lowest[:, :, None])
        return visible.expand(-1, self.block_size, -1)

    def visible_block(self) -> Tensor:
        """Positions of its own block that each position sees. [B, B] bool."""
        ones = torch.ones(
            self.block_size, self.block_size, dtype=torch.bool, device=self.anchors.device
        )
        return ones.tril() if self.causal else ones

    def visible_blocks(self, count: int) -> Tensor:
        """The same for blocks side by side, which do not see each other. [n * B, n * B] bool."""
        same = torch.eye(count, dtype=torch.bool, device=self.anchors.device)
        seen = same[:, None, :, None] & self.visible_block()[None, :, None, :]
        return seen.reshape(count * self.block_size, count * self.block_size)

    @cached_property
    def groups(self) -> tuple[tuple[BlockGroup, ...], ...]:
        """The groups of each sample, with their masks: made once, shared by the layers."""
        starts = range(0, self.anchors.shape[1], self.blocks_per_group)
        return tuple(tuple(self._group(row, start) for start in starts) for row in self.anchors)

    def _group(self, row: Tensor, start: int) -> BlockGroup:
        anchors = row[start : start + self.blocks_per_group]
        # No block of the group sees context at or after its largest anchor.
        length = min(int(anchors.max()), self.context_length)
        context = self.visible_context(anchors, length).flatten(0, 1)
        return BlockGroup(
            context_length=length,
            visible=torch.cat([context, self.visible_blocks(len(anchors))], dim=1),
        )

    def dense_mask(self) -> Tensor:
        """The whole mask, [b, 1, N * B, S + N * B] bool: for eager attention and for tests."""
        samples, count = self.anchors.shape
        context = self.visible_context(self.anchors.flatten(), self.context_length)
        context = context.reshape(samples, count * self.block_size, self.context_length)
        own = self.visible_blocks(count).expand(samples, -1, -1)
        return torch.cat([context, own], dim=-1)[:, None]

    def flex_mask(self) -> BlockMask:
        """The same mask for flex attention; compiled where that is supported."""
        samples, count = self.anchors.shape
        anchors, length, size = self.anchors, self.context_length, self.block_size

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


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockLayout,
    dropout: float = 0.0,
    scaling: float | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attention of blocks over context and themselves, in the signature of transformers.

    Args:
        query: [b, heads, N * B, D].
        key, value: [b, key/value heads, S + N * B, D].
        attention_mask: the layout.

    Returns:
        [b, N * B, heads, D], and None for the attention weights.
    """
    del unused  # transformers hands over more than this attention needs
    layout = attention_mask
    at_once = layout.blocks_per_group * layout.block_size
    outputs = []
    for groups, queries, keys, values in zip(
        layout.groups, query.unbind(), key.unbind(), value.unbind(), strict=True
    ):
        lengths = [group.context_length for group in groups]
        by_group = zip(
            groups,
            queries.split(at_once, dim=1),
            _by_group(keys, layout.context_length, lengths, at_once),
            _by_group(values, layout.context_length, lengths, at_once),
            strict=True,
        )
        parts = [_attend_group(q, k, v, g.visible, dropout, scaling) for g, q, k, v in by_group]
        outputs.append(torch.cat(parts, dim=1).transpose(0, 1))
    return torch.stack(outputs), None


def _by_group(
    states: Tensor, context_length: int, lengths: Sequence[int], at_once: int
) -> list[Tensor]:
    """What each group may see of [heads, S + N * B, D]: [heads, L + P, D] each.

    Pieces are split off rather than sliced: the gradient of a slice is as large as the whole.
    """
    context, own = states.split([context_length, states.shape[1] - context_length], dim=1)
    return [
        torch.cat([context[:, :length], positions], dim=1)
        for length, positions in zip(lengths, own.split(at_once, dim=1), strict=True)
    ]


def _attend_group(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    dropout: float,
    scaling: float | None,
) -> Tensor:
    """Attention of [heads, P, D] over [key/value heads, L + P, D]; [heads, P, D]."""
    # Query heads that share a key/value head become a batch, over which keys are not repeated.
    shared = query.unflatten(0, (len(key), -1)).transpose(0, 1)
    attended = scaled_dot_product_attention(
        shared,
        key.expand(len(shared), -1, -1, -1),
        value.expand(len(shared), -1, -1, -1),
        attn_mask=visible,
        dropout_p=dropout,
        scale=scaling,
    )
    return attended.transpose(0, 1).flatten(0, 1)


AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
