"""How a target checks a draft in decoding: the two rules of ``maths.verification`` on logits.

Shapes: B block size, n = drafted tokens + 1 (at most B), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.maths.verification import (
    Accepted,
    accept_by_comparison,
    accept_by_rejection,
)


@dataclass(frozen=True)
class Draft:
    """A drafted block without its anchor.

    Attributes:
        tokens: [B-1] int64.
        probabilities: [B-1, V], what each token was drawn from; None if it was not drawn.
    """

    tokens: Tensor
    probabilities: Tensor | None = None

    def first(self, count: int) -> Draft:
        """Its first ``count`` tokens, or all if there are not as many."""
        q = self.probabilities
        return Draft(self.tokens[:count], None if q is None else q[:count])


class Rule(Protocol):
    """How the target's tokens are picked, and a draft judged."""

    def pick(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """A token without a draft: [1, V] -> [1] int64."""

    def judge(self, draft: Draft, logits: Tensor, generator: torch.Generator | None) -> Accepted:
        """The target's verdict on one draft; ``logits`` [n, V] after the anchor and each token."""


@dataclass(frozen=True)
class Comparison:
    """Drafted tokens must be those that the target picks: exact for every draft."""

    sampling: Sampling

    def pick(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.sampling.tokens(logits, generator)

    def judge(self, draft: Draft, logits: Tensor, generator: torch.Generator | None) -> Accepted:
        picked = self.sampling.tokens(logits, generator)
        return accept_by_comparison(draft.tokens[None], picked[None])


@dataclass(frozen=True)
class Rejection:
    """Ratio of probabilities, resampling from the residual: for sampled drafts of one pass."""

    sampling: Sampling

    def __post_init__(self) -> None:
        if self.sampling.is_greedy:
            raise ValueError(
                "rejection compares probabilities, and temperature 0 has none; give a temperature "
                "above 0, or compare with the target's own tokens"
            )

    def pick(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.sampling.tokens(logits, generator)

    def judge(self, draft: Draft, logits: Tensor, generator: torch.Generator | None) -> Accepted:
        if draft.probabilities is None or generator is None:
            raise ValueError("rejection needs the draft's probabilities, and a generator")
        return accept_by_rejection(
            draft.tokens[None],
            draft_probabilities=draft.probabilities[None],
            target_probabilities=self.sampling.probabilities(logits)[None],
            generator=generator,
        )
