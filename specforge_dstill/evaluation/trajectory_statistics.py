"""What a store's trajectories look like on the whole, by position in the block.

Sums over blocks that can be added up, so that a store is read a sample at a time.

Shapes: N blocks, B block size, K passes; columns stand for positions 1..B-1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from specforge_dstill.maths.acceptance import accepted_prefix
from specforge_dstill.maths.blocks import ReferenceBlocks
from specforge_dstill.maths.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class TrajectoryStatistics:
    """Sums over blocks. ``one + other`` are the statistics of both together.

    Attributes:
        blocks: [] int64.
        commits: [B-1, K] int64, how often pass t (column t-1) committed the position.
        tail: [B-1] float64, probability outside the retained ids at the committing pass, summed.
        confidence: [B-1] float64, that of the committed token at its pass, summed.
        confident: [B-1] int64, how many have one: the committed token is among the retained ids.
        scored: [B-1] int64, positions with a reference token that counts.
        agreed: [B-1] int64, those of them where the endpoint is the reference.
        accepted: [B] int64, blocks by the endpoint's accepted prefix 0..B-1. Only blocks whose
            first position is scored are counted, here and below.
        root_agreed, root_accepted: the same of the first pass's most probable tokens; zero
            unless every pass was recorded.
    """

    blocks: Tensor
    commits: Tensor
    tail: Tensor
    confidence: Tensor
    confident: Tensor
    scored: Tensor
    agreed: Tensor
    accepted: Tensor
    root_agreed: Tensor
    root_accepted: Tensor

    @classmethod
    def none(cls, *, block_size: int, steps: int) -> TrajectoryStatistics:
        """Of no blocks."""
        free, counts = block_size - 1, torch.int64
        return cls(
            blocks=torch.zeros((), dtype=counts),
            commits=torch.zeros(free, steps, dtype=counts),
            tail=torch.zeros(free, dtype=torch.float64),
            confidence=torch.zeros(free, dtype=torch.float64),
            confident=torch.zeros(free, dtype=counts),
            scored=torch.zeros(free, dtype=counts),
            agreed=torch.zeros(free, dtype=counts),
            accepted=torch.zeros(block_size, dtype=counts),
            root_agreed=torch.zeros(free, dtype=counts),
            root_accepted=torch.zeros(block_size, dtype=counts),
        )

    @classmethod
    def of(
        cls, trajectory: Trajectory, *, steps: int, reference: ReferenceBlocks | None = None
    ) -> TrajectoryStatistics:
        """Of N blocks; without ``reference`` nothing is scored.

        Args:
            steps: K.
            reference: the data's tokens of the same blocks.
        """
        count, block_size = trajectory.endpoint.shape
        if count == 0:
            return cls.none(block_size=block_size, steps=steps)
        none = cls.none(block_size=block_size, steps=steps)
        probability, known = committed_probability(trajectory)
        _, logp = trajectory.committing()
        commit_pass = trajectory.commit_pass[:, 1:]
        scored, agreed, accepted = none.scored, none.agreed, none.accepted
        root_agreed, root_accepted = none.root_agreed, none.root_accepted
        if reference is not None:
            scored = reference.scored[:, 1:].sum(0)
            agreed, accepted = _agreement(trajectory.endpoint[:, 1:], reference)
            root = root_prediction(trajectory)
            if root is not None:
                root_agreed, root_accepted = _agreement(root, reference)
        return cls(
            blocks=torch.tensor(count),
            commits=torch.stack([(commit_pass == t).sum(0) for t in range(1, steps + 1)], dim=1),
            tail=(1 - logp.double().exp().sum(-1)).clamp(min=0).sum(0),
            confidence=probability.double().sum(0),
            confident=known.sum(0),
            scored=scored,
            agreed=agreed,
            accepted=accepted,
            root_agreed=root_agreed,
            root_accepted=root_accepted,
        )

    def __add__(self, other: TrajectoryStatistics) -> TrajectoryStatistics:
        names = [field.name for field in fields(self)]
        return TrajectoryStatistics(**{n: getattr(self, n) + getattr(other, n) for n in names})

    @property
    def mean_commit_pass(self) -> Tensor:
        """[B-1] float64; NaN without blocks."""
        passes = torch.arange(1, self.commits.shape[1] + 1, dtype=torch.float64)
        return (self.commits * passes).sum(1) / self.blocks

    @property
    def mean_tail(self) -> Tensor:
        """[B-1] float64, of the probability outside the retained ids."""
        return self.tail / self.blocks

    @property
    def mean_confidence(self) -> Tensor:
        """[B-1] float64; NaN where no committed token was retained."""
        return self.confidence / self.confident

    @property
    def agreement(self) -> Tensor:
        """[B-1] float64, the share of scored positions where the endpoint is the reference."""
        return self.agreed.double() / self.scored

    @property
    def root_agreement(self) -> Tensor:
        """[B-1] float64, the same of the first pass's most probable tokens."""
        return self.root_agreed.double() / self.scored

    @property
    def acceptance(self) -> float:
        """Mean accepted tokens of the endpoint, anchor included; NaN without a reference."""
        return _mean_length(self.accepted)

    @property
    def root_acceptance(self) -> float:
        """The same of the first pass's most probable tokens: what one pass would get accepted."""
        return _mean_length(self.root_accepted)


def committed_probability(trajectory: Trajectory) -> tuple[Tensor, Tensor]:
    """The committed token's probability at its committing pass, and where it is known.

    A sampled token can lie outside the retained ids; it is 0 there and not known.

    Returns:
        [N, B-1] float32 and [N, B-1] bool.
    """
    ids, logp = trajectory.committing()
    found = ids == trajectory.endpoint[:, 1:, None]
    return (logp.exp() * found).sum(-1), found.any(-1)


def root_prediction(trajectory: Trajectory) -> Tensor | None:
    """[N, B-1], the most probable tokens at the first pass; None unless every pass is recorded."""
    whole = trajectory.top_ids.shape[1] > 1 and trajectory.top_ids.shape[-1] > 0
    return trajectory.top_ids[:, 0, :, 0] if whole else None


def _agreement(tokens: Tensor, reference: ReferenceBlocks) -> tuple[Tensor, Tensor]:
    """Agreement by position [B-1], and blocks by accepted prefix [B], of tokens [N, B-1]."""
    matches = (tokens == reference.tokens[:, 1:]) & reference.scored[:, 1:]
    counted = reference.scored[:, 1]
    lengths = accepted_prefix(matches[counted])
    return matches.sum(0), torch.bincount(lengths, minlength=tokens.shape[1] + 1)


def _mean_length(histogram: Tensor) -> float:
    lengths = torch.arange(1, len(histogram) + 1, dtype=torch.float64)
    return float((histogram * lengths).sum() / histogram.sum())
