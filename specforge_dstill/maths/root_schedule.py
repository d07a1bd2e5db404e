"""Stage II's curriculum: how often the root state is sampled, and the draw of a state.

Shapes: N blocks, B block size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

import torch
from torch import Tensor


@dataclass(frozen=True)
class RootSchedule:
    """Eq. 9: the root probability as a function of training progress.

    ``start`` until ``warmup``, ``end`` from ``1 - cooldown``, half a cosine between them.
    With the defaults its average over training is 0.71, the figure in the paper.

    Raises:
        ValueError: a probability outside [0, 1], or no time between warm-up and cool-down.
    """

    start: float = 0.5
    end: float = 0.85
    warmup: float = 0.10
    cooldown: float = 0.30

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"p_root {name} must lie in [0, 1], got {getattr(self, name)}")
        if min(self.warmup, self.cooldown) < 0 or self.warmup + self.cooldown >= 1:
            raise ValueError(
                "warmup and cooldown must be at least 0 and add up to less than 1, "
                f"got {self.warmup} and {self.cooldown}"
            )

    def p_root(self, progress: float) -> float:
        """The probability of the root at ``progress`` in [0, 1] (values outside are clamped)."""
        if progress <= self.warmup:
            return self.start
        if progress >= 1 - self.cooldown:
            return self.end
        phase = (progress - self.warmup) / (1 - self.warmup - self.cooldown)
        return self.start + (self.end - self.start) * (1 - cos(pi * phase)) / 2


def draw_states(commit_pass: Tensor, *, p_root: float, generator: torch.Generator) -> Tensor:
    """Draw the pass whose input each block is trained on (Appendix 8.3).

    The root ``t = 1`` with probability ``p_root``, else uniform over 2..max(commit_pass);
    a block committed in one pass has no intermediate state and stays at the root.

    Args:
        commit_pass: [N, B] integer, 0 at the anchor.
        p_root: in [0, 1], see :meth:`RootSchedule.p_root`.
        generator: on the CPU.

    Returns:
        [N] int64, on the CPU where the draw happens.
    """
    count = len(commit_pass)
    if count == 0:
        return torch.zeros(0, dtype=torch.int64)
    last = commit_pass.amax(dim=1).cpu()
    at_root = torch.rand(count, generator=generator) < p_root
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    # floor(u * (last - 1)) is uniform over 0..last-2, so the state is uniform over 2..last.
    later = 2 + (uniform * (last - 1)).floor().to(torch.int64)
    return torch.where(at_root | (last < 2), 1, later)
