"""Passes over logits that read memory as few times as they can.

A vocabulary's worth of logits a row is large: what costs time is not the arithmetic but how
often the rows are read, written and allocated.

Shapes: R rows, V vocabulary, k retained ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Ids are searched in groups: the largest of each group first, then inside the best groups.
GROUP_SIZE = 64
# Rows of which a softmax is taken at once: few enough that it stays in a processor's cache.
ROWS_AT_ONCE = 64


def largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest logits of each row, descending, and their ids: both [R, count].

    Among equal logits the lower id comes first, on every device; ``topk`` promises no order, and
    in bfloat16 ties are common.

    One pass over the rows: a row's ``count`` largest lie in the ``count`` groups of ids with the
    largest maxima (of equal maxima the lower ones), or among the ids left over.
    """
    groups = logits.shape[1] // GROUP_SIZE
    if groups <= count:
        return _first_largest(logits, count)
    grouped = logits[:, : groups * GROUP_SIZE].unflatten(1, (groups, GROUP_SIZE))
    best = _first_largest(grouped.amax(dim=2), count)[1].sort(dim=1).values[:, :, None]
    offset = torch.arange(GROUP_SIZE, device=logits.device)
    left_over = torch.arange(groups * GROUP_SIZE, logits.shape[1], device=logits.device)
    ids = torch.cat(
        [(best * GROUP_SIZE + offset).flatten(1), left_over.expand(len(logits), -1)], dim=1
    )
    values, at = _first_largest(logits.gather(1, ids), count)
    return values, ids.gather(1, at)


def _first_largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """:func:`largest` by plain means."""
    if count == 1:
        top, at = values.max(dim=1, keepdim=True)  # of equals the first, by its documentation
        return top, at
    ordered, at = values.sort(dim=1, descending=True, stable=True)
    return ordered[:, :count], at[:, :count]


def softmax(logits: Tensor, *, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Softmax [R, V] and its log-normaliser ``log sum exp`` [R, 1]; ``out`` takes the softmax."""
    top, at = largest(logits, 1)
    probabilities = torch.softmax(logits, dim=1, out=out)
    # The largest probability is at least 1 / V: its logarithm loses nothing.
    return probabilities, top - probabilities.gather(1, at).log()


def log_normaliser(logits: Tensor) -> Tensor:
    """``log sum exp`` of each row, [R, 1], with a few rows of scratch memory."""
    scratch = torch.empty_like(logits[:ROWS_AT_ONCE])
    parts = [softmax(rows, out=scratch[: len(rows)])[1] for rows in logits.split(ROWS_AT_ONCE)]
    return torch.cat(parts)
