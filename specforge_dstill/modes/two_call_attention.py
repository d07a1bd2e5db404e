"""Attention of blocks in two calls of flash-attn: the context, then the own block.

flash-attn takes no mask as ours, but it takes a length for each query block and keys that blocks
share. So every block attends to the first ``anchor`` positions of its sample's context, then to
itself, and the two are merged by their log-sum-exps. There is no backward pass: this is for
rollout and decoding, in the place of flex attention.

Shapes: b samples, N blocks, B slots of a block, S context length, D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specforge_dstill.errors import UserError
from specforge_dstill.maths.attention_merge import PartialAttention, merge_attention
from specforge_dstill.modes.block_attention import BlockLayout, register_attention

TWO_CALL_ATTENTION = "dstill_two_call_flash"


def two_call_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: BlockLayout, scaling: float
) -> Tensor:
    """Attention of [b, heads, N * B, D] over [b, key/value heads, S + N * B, D].

    Returns:
        [b, N * B, heads, D].
    """
    # machine.check_attention has told whether it is there.
    from flash_attn import flash_attn_with_kvcache as kernel

    size, length = layout.slots, layout.context_length
    samples, count = layout.anchors.shape
    queries = _blocks(query, size)
    anchors = layout.anchors.flatten()
    output, log_sum_exp = kernel(
        queries,
        key[:, :, :length].transpose(1, 2),
        value[:, :, :length].transpose(1, 2),
        cache_seqlens=anchors.int(),
        cache_batch_idx=torch.arange(samples, device=anchors.device).repeat_interleave(count).int(),
        window_size=(_context_window(layout), -1),
        softmax_scale=scaling,
        return_softmax_lse=True,
    )
    # What flash-attn gives as the log-sum-exp of no key differs between its versions.
    empty = (anchors == 0)[:, None, None]
    context = PartialAttention(output.transpose(1, 2), log_sum_exp.masked_fill(empty, -torch.inf))
    output, log_sum_exp = kernel(
        queries,
        _blocks(key[:, :, length:], size),
        _blocks(value[:, :, length:], size),
        causal=layout.causal,
        softmax_scale=scaling,
        return_softmax_lse=True,
    )
    merged = merge_attention([context, PartialAttention(output.transpose(1, 2), log_sum_exp)])
    return merged.transpose(1, 2).reshape(samples, count * size, *merged.shape[1::2])


def _blocks(states: Tensor, size: int) -> Tensor:
    """[b, heads, N * B, D] -> [b * N, B, heads, D]."""
    return states.unflatten(2, (-1, size)).permute(0, 2, 3, 1, 4).flatten(0, 1)


def _context_window(layout: BlockLayout) -> int:
    """How far back a query sees, as flash-attn counts it; -1 is without a limit.

    flash-attn puts the last query on the last key. Ours stand behind the context, a block further
    on.
    """
    if layout.window is None:
        return -1
    if layout.window <= layout.slots:
        raise UserError(
            f"training.attention_backend: fa needs a sliding window wider than the block, not "
            f"{layout.window} with blocks of {layout.slots}; leave the option out"
        )
    return layout.window - 1 - layout.slots


register_attention(TWO_CALL_ATTENTION, two_call_attention)
