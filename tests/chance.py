"""Whether what was drawn may come from given probabilities."""

from __future__ import annotations

import torch
from torch import Tensor


def chi_square(observed: Tensor, probabilities: Tensor) -> float:
    """The p-value of counts [C] under probabilities [C]; cells that expect < 5 are one cell."""
    expected = probabilities * observed.sum()
    small = expected < 5
    counts, wanted = (
        torch.cat([column[~small], column[small].sum()[None]])
        for column in (observed.double(), expected)
    )
    if (counts[wanted == 0] > 0).any():
        return 0.0
    kept = wanted > 0
    statistic = ((counts - wanted)[kept] ** 2 / wanted[kept]).sum()
    return float(torch.special.gammaincc((kept.sum() - 1) / 2, statistic / 2))
