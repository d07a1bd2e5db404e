"""How many positions are committed at each pass, and the reveal levels that follow from it.

Shapes: B block size, K passes. Pure integers and floats, no tensors.
"""

from __future__ import annotations

from math import ceil


def check_steps(block_size: int, steps: int) -> None:
    """Raise ValueError unless a block of ``block_size`` can be refined over ``steps`` passes."""
    if block_size < 2:
        raise ValueError(f"block_size must be at least 2 (anchor and one token), got {block_size}")
    if not 1 <= steps <= block_size - 1:
        raise ValueError(
            f"steps must lie in 1..{block_size - 1} for block_size {block_size} "
            f"(each pass commits at least one position), got {steps}"
        )


def commit_counts(block_size: int, steps: int) -> tuple[int, ...]:
    """Positions committed at pass t = 1..K: ``n_t = ceil((B - |c_t|) / (K - t + 1))`` (Eq. 4).

    ``c_t`` includes the anchor, which is why B=16, K=8 gives 2,2,2,2,2,2,2,1.
    Each count is at least 1 and they add up to B - 1.
    """
    check_steps(block_size, steps)
    counts = []
    committed = 1
    for t in range(1, steps + 1):
        count = ceil((block_size - committed) / (steps - t + 1))
        counts.append(count)
        committed += count
    return tuple(counts)


def reveal_levels(block_size: int, steps: int) -> tuple[float, ...]:
    """Stage I's reveal probabilities ``r_t = (m_t - 1) / (B - 1)``, t = 1..K (Eq. 5).

    ``m_t`` is the number of visible positions (anchor included) before pass t of a rollout.
    The first level is 0, the root. Every level is below 1, as Eq. 5 asks: each pass has at
    least one position left to commit.
    """
    counts = commit_counts(block_size, steps)
    return tuple(sum(counts[:t]) / (block_size - 1) for t in range(steps))
