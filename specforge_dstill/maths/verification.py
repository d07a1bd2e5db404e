"""Which drafted tokens the target accepts, and the token it puts after them.

Two rules, both lossless: what is accepted together with the token after it is distributed as
the target's own samples are, whatever the drafter proposes.

Shapes: N blocks, B block size, V vocabulary. A block's position 0 is its anchor, which the target
chose; B-1 tokens are drafted. The target reads anchor and drafted tokens in one pass and so gives
B distributions: row i is of the token after position i, given everything drafted up to there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specforge_dstill.maths.acceptance import accepted_prefix
from specforge_dstill.maths.drawing import draw


@dataclass(frozen=True)
class Accepted:
    """What became of N drafted blocks.

    Attributes:
        lengths: [N] int64, L: how many drafted tokens are accepted, 0..B-1.
        next_tokens: [N] int64, the target's own token after them: the next anchor.
    """

    lengths: Tensor
    next_tokens: Tensor


def accept_by_comparison(proposals: Tensor, target_tokens: Tensor) -> Accepted:
    """Accept drafted tokens as long as they are the tokens that the target picked itself.

    What comes out are the target's picks and nothing else, so this is exact at every temperature
    and for any number of passes. The draft must not depend on those picks.

    Args:
        proposals: [N, B-1] int64, the drafted tokens.
        target_tokens: [N, B] int64, sampled from (or the argmax of) the target's B distributions.
    """
    lengths = accepted_prefix(proposals == target_tokens[:, :-1])
    return Accepted(lengths, target_tokens.gather(1, lengths[:, None]).squeeze(1))


def accept_by_rejection(
    proposals: Tensor,
    *,
    draft_probabilities: Tensor,
    target_probabilities: Tensor,
    generator: torch.Generator,
) -> Accepted:
    """Accept a drafted token with probability ``min(1, p / q)``; else draw from ``(p - q)+``.

    Speculative sampling (Leviathan et al.; Chen et al.). Exact if each token was drawn from its
    row of ``draft_probabilities``, whatever the tokens before it are: so for drafts of one pass
    (see :func:`check_rejection`).

    Args:
        proposals: [N, B-1] int64, drawn from the rows of ``draft_probabilities``.
        draft_probabilities: [N, B-1, V], q.
        target_probabilities: [N, B, V], p.
        generator: must live on the tensors' device.
    """
    chosen = proposals[:, :, None]
    q = draft_probabilities.gather(2, chosen).squeeze(2)
    p = target_probabilities[:, :-1].gather(2, chosen).squeeze(2)
    uniform = torch.rand(q.shape, generator=generator, device=q.device, dtype=q.dtype)
    # uniform < p / q, without dividing by a q that may have been rounded to 0.
    lengths = accepted_prefix(uniform * q < p)
    rows = torch.arange(len(lengths), device=lengths.device)
    last = target_probabilities[rows, lengths]
    rejected = lengths < proposals.shape[1]
    last[rejected] = _residual(
        last[rejected], draft_probabilities[rows[rejected], lengths[rejected]]
    )
    return Accepted(lengths, draw(last, generator=generator))


def _residual(p: Tensor, q: Tensor) -> Tensor:
    """``(p - q)+`` of each row, [R, V], to be drawn from without dividing by its sum.

    Where rounding leaves nothing of it, p and q are the same to the last digits, and p serves.
    """
    left = (p - q).clamp_min(0)
    return torch.where(left.sum(dim=1, keepdim=True) > 0, left, p)


def check_rejection(*, steps: int) -> None:
    """Refuse the rejection rule for drafts of several passes.

    Their tokens depend on each other through the order of commitment, so the probability of a
    token given those to its left, which the rule needs, is not known.

    Raises:
        ValueError: ``steps`` is above 1.
    """
    if steps > 1:
        raise ValueError(
            f"rejection needs the draft's probabilities from left to right, which {steps} passes "
            "do not give; compare with the target's own tokens instead, which is exact, too"
        )
