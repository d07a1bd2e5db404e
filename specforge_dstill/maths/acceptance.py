"""Acceptance lengths and what is derived from them.

Shapes: N blocks, B block size.
"""

from __future__ import annotations

from torch import Tensor


def accepted_prefix(matches: Tensor) -> Tensor:
    """Length of the leading run of True: L of ``tau = 1 + E[L]``.

    Args:
        matches: [N, B-1] bool, drafted token equals the target's token. A position that must
            not be counted (past the end, not scored) is passed as False and ends the run.

    Returns:
        [N] int64, 0..B-1.
    """
    return matches.long().cumprod(dim=1).sum(dim=1)


def recovery(*, student_1: float, teacher_1: float, teacher_k: float) -> float | None:
    """Share of the teacher's multi-pass gain that the one-pass student keeps (Eq. 13).

    Arguments are mean acceptance lengths. None unless the teacher gains from its passes.
    """
    gain = teacher_k - teacher_1
    return (student_1 - teacher_1) / gain if gain > 0 else None
