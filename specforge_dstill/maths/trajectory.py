"""A recorded refinement, and the states rebuilt from it.

Shapes: N blocks, B block size, K passes, k retained ids, T recorded passes (1 or K).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Trajectory:
    """What a rollout of N blocks leaves behind (Appendix 8.2).

    Commitments are never revised, so the endpoint and the commit passes are enough to rebuild
    every state; see :func:`state_at`.

    Attributes:
        endpoint: [N, B] int64, ``x_0``, the fully committed block, anchor included.
        commit_pass: [N, B] int64, ``kappa``: the pass 1..K that committed a position, 0 at the
            anchor.
        top_ids: [N, T, B-1, k] int64, the teacher's most probable ids in descending order.
            T = 1 keeps the committing pass of each position; T = K keeps every pass at which
            the position was masked, and -1 afterwards.
        top_logp: [N, T, B-1, k] float32, their full-softmax log-probabilities; -inf where the
            id is -1.
    """

    endpoint: Tensor
    commit_pass: Tensor
    top_ids: Tensor
    top_logp: Tensor

    def __len__(self) -> int:
        return len(self.endpoint)

    def __getitem__(self, index: Tensor) -> Trajectory:
        """The trajectories of the blocks that ``index`` (integers or booleans, [n]) picks."""
        return Trajectory(
            endpoint=self.endpoint[index],
            commit_pass=self.commit_pass[index],
            top_ids=self.top_ids[index],
            top_logp=self.top_logp[index],
        )

    def to(self, device: torch.device | str) -> Trajectory:
        """The same on another device."""
        return Trajectory(
            endpoint=self.endpoint.to(device),
            commit_pass=self.commit_pass.to(device),
            top_ids=self.top_ids.to(device),
            top_logp=self.top_logp.to(device),
        )

    @classmethod
    def cat(cls, parts: Sequence[Trajectory]) -> Trajectory:
        """Put trajectories of the same B, T and k one after the other."""
        return cls(
            endpoint=torch.cat([part.endpoint for part in parts]),
            commit_pass=torch.cat([part.commit_pass for part in parts]),
            top_ids=torch.cat([part.top_ids for part in parts]),
            top_logp=torch.cat([part.top_logp for part in parts]),
        )

    def committing(self) -> tuple[Tensor, Tensor]:
        """Ids and log-probabilities at each position's committing pass, both [N, B-1, k]."""
        if self.top_ids.shape[1] == 1:
            return self.top_ids[:, 0], self.top_logp[:, 0]
        retained = self.top_ids.shape[-1]
        at = (self.commit_pass[:, 1:] - 1)[:, None, :, None].expand(-1, 1, -1, retained)
        return self.top_ids.gather(1, at)[:, 0], self.top_logp.gather(1, at)[:, 0]


def masked_at(commit_pass: Tensor, t: Tensor) -> Tensor:
    """Positions still masked in the input to pass ``t``: ``kappa_i >= t``. [N, B] bool."""
    return commit_pass >= t[:, None]


def state_at(endpoint: Tensor, commit_pass: Tensor, t: Tensor, *, mask_token_id: int) -> Tensor:
    """Rebuild ``x_t``: the endpoint's token where ``kappa_i < t``, else the mask (Eq. 8).

    The anchor has ``kappa_0 = 0`` and is always visible; ``t = 1`` is the root and
    ``t = K + 1`` the endpoint.

    Args:
        endpoint: [N, B] int64.
        commit_pass: [N, B] integer.
        t: [N] integer in 1..K+1, a pass for each block.

    Returns:
        [N, B] int64.
    """
    return torch.where(masked_at(commit_pass, t), mask_token_id, endpoint)
