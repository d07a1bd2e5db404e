"""Attention over groups of blocks, for where there is no flex attention.

A dense mask over all blocks would be (N * B) x (S + N * B), at the paper's sizes 8192 x 32768. Here
``blocks_per_group`` blocks attend at once, each group with only the context its anchors can see.
What a group needs beyond queries, keys and values is made when it is its turn and dropped after it,
in the backward pass again: memory does not grow with the number of groups.

Shapes: b samples, N blocks, B slots of a block, S context length, P positions of a group, L context
that a group sees, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from specforge_dstill.modes.block_attention import BlockLayout, register_attention

GROUPED_ATTENTION = "dstill_grouped_sdpa"


@dataclass(frozen=True)
class Group:
    """Neighbouring blocks of one sample, and where their parts lie in the whole tensors.

    Attributes:
        sample: of the batch.
        rows: the group's P positions among the N * B.
        length: L.
        own: the same positions among the keys, behind the S of the context.
        visible: [P, L + P] bool, what each position sees.
    """

    sample: int
    rows: slice
    length: int
    own: slice
    visible: Tensor

    def keys(self, whole: Tensor) -> Tensor:
        """What the group may see of keys or values [b, heads, S + N * B, D]: [heads, L + P, D]."""
        states = whole[self.sample]
        return torch.cat([states[:, : self.length], states[:, self.own]], dim=1)

    def add(self, piece: Tensor, *, to: Tensor) -> None:
        """Add the gradient of :meth:`keys` to that of the whole."""
        to[self.sample, :, : self.length] += piece[:, : self.length]
        to[self.sample, :, self.own] += piece[:, self.length :]


def groups_of(layout: BlockLayout) -> Iterator[Group]:
    """The groups of every sample, one at a time."""
    size, start_of_own = layout.slots, layout.context_length
    for sample, lengths in enumerate(layout.group_lengths):
        for index, length in enumerate(lengths):
            first = index * layout.blocks_per_group
            anchors = layout.anchors[sample, first : first + layout.blocks_per_group]
            start, stop = first * size, (first + len(anchors)) * size
            yield Group(
                sample=sample,
                rows=slice(start, stop),
                length=length,
                own=slice(start_of_own + start, start_of_own + stop),
                visible=layout.visible(anchors, length),
            )


class _GroupedAttention(torch.autograd.Function):
    """Saves queries, keys and values as they came; the backward pass attends once more."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: BlockLayout, scaling: float
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.layout, ctx.scaling = layout, scaling
        output = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
        for group in groups_of(layout):
            queries = query[group.sample, :, group.rows]
            attended = _attend(queries, group.keys(key), group.keys(value), group, scaling)
            output[group.sample, group.rows] = attended.transpose(0, 1)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        by_query, by_key, by_value = (torch.zeros_like(whole) for whole in (query, key, value))
        for group in groups_of(ctx.layout):
            queries, keys, values = parts = [
                part.detach().requires_grad_()
                for part in (
                    query[group.sample, :, group.rows],
                    group.keys(key),
                    group.keys(value),
                )
            ]
            with torch.enable_grad():
                attended = _attend(queries, keys, values, group, ctx.scaling)
            direction = gradient[group.sample, group.rows].transpose(0, 1)
            of_queries, of_keys, of_values = torch.autograd.grad(attended, parts, direction)
            by_query[group.sample, :, group.rows] = of_queries
            group.add(of_keys, to=by_key)
            group.add(of_values, to=by_value)
        return by_query, by_key, by_value, None, None


def _attend(query: Tensor, key: Tensor, value: Tensor, group: Group, scaling: float) -> Tensor:
    """Attention of [heads, P, D] over [key/value heads, L + P, D]; [heads, P, D]."""
    # Query heads that share a key/value head become a batch, over which keys are not repeated.
    shared = query.unflatten(0, (len(key), -1)).transpose(0, 1)
    attended = scaled_dot_product_attention(
        shared,
        key.expand(len(shared), -1, -1, -1),
        value.expand(len(shared), -1, -1, -1),
        attn_mask=group.visible,
        scale=scaling,
    )
    return attended.transpose(0, 1).flatten(0, 1)


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: BlockLayout, scaling: float
) -> Tensor:
    """Attention of blocks over context and themselves, with a backward pass.

    Args:
        query: [b, heads, N * B, D].
        key, value: [b, key/value heads, S + N * B, D].

    Returns:
        [b, N * B, heads, D].
    """
    attended: Tensor = _GroupedAttention.apply(query, key, value, layout, scaling)
    return attended


register_attention(GROUPED_ATTENTION, grouped_attention)
