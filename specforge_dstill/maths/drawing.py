"""One id of each row of weights, drawn in proportion to them by a single uniform number.

``torch.multinomial`` takes a random number for every id: on a CPU many times as long as the
softmax before it. Here one number a row is looked up among running sums, first of groups of ids,
then within the group, so that a vocabulary is summed up in one pass and searched in two short ones.

Shapes: R rows, V ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specforge_dstill.maths.logits import GROUP_SIZE


def draw(weights: Tensor, *, generator: torch.Generator | None) -> Tensor:
    """One id a row with probability in proportion to its weight: [R, V] -> [R] int64.

    Args:
        weights: at least 0, and above 0 somewhere in each row; they need not sum to 1.
        generator: must live on the weights' device; one number a row is taken from it.

    Raises:
        ValueError: no generator, as one that is optional elsewhere may be. Torch's own would give
            what no seed gives again.
    """
    if generator is None:
        raise ValueError("drawing needs a generator")
    uniform = torch.rand(
        len(weights), generator=generator, device=weights.device, dtype=torch.float64
    )
    return draw_at(weights, uniform)


def draw_at(weights: Tensor, uniform: Tensor) -> Tensor:
    """The id of each row at which ``uniform`` of the row's weight is passed; never one of weight 0.

    For numbers that belong to a row wherever it is computed: to a position of a block, whatever
    the tiles, or to a prompt, whatever the batch.

    Args:
        weights: [R, V], as for :func:`draw`.
        uniform: [R], in [0, 1], on the weights' device.

    Returns:
        [R] int64.
    """
    padded = torch.nn.functional.pad(weights, (0, -weights.shape[1] % GROUP_SIZE))
    groups = padded.unflatten(1, (-1, GROUP_SIZE))
    sums = groups.sum(dim=2).cumsum(dim=1, dtype=torch.float64)
    weight = uniform.double() * sums[:, -1]
    group = _place(sums, weight)
    rows = torch.arange(len(weights), device=weights.device)
    before = torch.nn.functional.pad(sums, (1, 0))[rows, group]
    share = (weight - before) / (sums[rows, group] - before)
    inside = groups[rows, group].cumsum(dim=1, dtype=torch.float64)
    return group * GROUP_SIZE + _place(inside, share * inside[:, -1])


def _place(sums: Tensor, weight: Tensor) -> Tensor:
    """The first column of running sums [R, n] above ``weight`` [R]; [R] int64."""
    total = sums[:, -1]
    # Rounding must not take it up to the total, which no column exceeds.
    below = torch.minimum(weight, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, below[:, None], right=True).squeeze(1)
