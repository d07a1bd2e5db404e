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

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

GROUPED_ATTENTION = "dstill_grouped_sdpa"


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
    blocks_per_group: int = 64

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

    def dense_mask(self) -> Tensor:
        """The whole mask, [b, 1, N * B, S + N * B] bool: for eager attention and for tests."""
        samples, count = self.anchors.shape
        context = self.visible_context(self.anchors.flatten(), self.context_length)
        context = context.reshape(samples, count * self.block_size, self.context_length)
        own = torch.block_diag(*[self.visible_block().float()] * count).bool()
        return torch.cat([context, own.expand(samples, -1, -1)], dim=-1)[:, None]

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
    samples, heads, _, width = query.shape
    outputs = []
    for sample in range(samples):
        parts = [
            _attend_group(
                query[sample], key[sample], value[sample], layout, sample, start, dropout, scaling
            )
            for start in range(0, layout.anchors.shape[1], layout.blocks_per_group)
        ]
        outputs.append(torch.cat(parts).transpose(1, 2).reshape(-1, heads, width))
    return torch.stack(outputs), None


def _attend_group(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: BlockLayout,
    sample: int,
    start: int,
    dropout: float,
    scaling: float | None,
) -> Tensor:
    """One group of one sample: [n, heads, B, D]."""
    anchors = layout.anchors[sample, start : start + layout.blocks_per_group]
    count, size = len(anchors), layout.block_size
    # No block of the group sees context at or after its largest anchor.
    length = min(int(anchors.max()), layout.context_length)
    own = slice(
        layout.context_length + start * size, layout.context_length + (start + count) * size
    )

    def with_context(states: Tensor) -> Tensor:
        context = states[:, :length].expand(count, -1, -1, -1)
        return torch.cat([context, _split_blocks(states[:, own], count)], dim=2)

    visible = torch.cat(
        [
            layout.visible_context(anchors, length),
            layout.visible_block().expand(count, -1, -1),
        ],
        dim=-1,
    )
    # Query heads that share a key/value head are laid side by side as further queries: the
    # keys are then never repeated.
    blocks = _split_blocks(query[:, start * size : (start + count) * size], count)
    heads, kv_heads = query.shape[0], key.shape[0]
    shared = heads // kv_heads
    folded = blocks.reshape(count, kv_heads, shared * size, -1)
    attended = scaled_dot_product_attention(
        folded,
        with_context(key),
        with_context(value),
        attn_mask=visible[:, None].repeat(1, 1, shared, 1),
        dropout_p=dropout,
        scale=scaling,
    )
    return attended.reshape(count, heads, size, -1)


def _split_blocks(states: Tensor, count: int) -> Tensor:
    """[heads, n * B, D] -> [n, heads, B, D]."""
    heads, _, width = states.shape
    return states.reshape(heads, count, -1, width).transpose(0, 1)


AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
