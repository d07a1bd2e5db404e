"""A :class:`BlockDrafter` of K passes for evaluation's replay."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specforge_dstill.maths.rollout import CommitRule, rollout
from specforge_dstill.modes.context_cache import ContextCache
from specforge_dstill.modes.drafter import BlockDrafter


@dataclass(frozen=True)
class PassesDrafter:
    """Drafts greedily in ``steps`` passes: 1 is the one-pass drafter as it is served."""

    drafter: BlockDrafter
    steps: int

    @property
    def block_size(self) -> int:
        return self.drafter.shape.positions

    def begin(self, hidden_states: Tensor) -> ReplaySession:
        return ReplaySession(self, hidden_states.to(self.drafter.lm_head.weight))


class ReplaySession:
    """Drafts over a batch of contexts, [b, S, W], which are projected once."""

    def __init__(self, passes: PassesDrafter, hidden_states: Tensor) -> None:
        self._passes = passes
        self._hidden_states = hidden_states
        self._context = ContextCache()
        self._head = passes.drafter.head()

    @torch.no_grad()
    def draft(self, anchors: Tensor, anchor_ids: Tensor) -> Tensor:
        """Proposals for a block in each context: [b] positions and tokens -> [b, B-1]."""
        drafter = self._passes.drafter
        device = self._hidden_states.device
        at = anchors.to(device)[:, None]

        def hidden(blocks: Tensor) -> Tensor:
            return drafter(blocks[:, None], at, self._hidden_states, self._context)[:, 0]

        trajectory = rollout(
            hidden,
            self._head,
            anchor_ids.to(device),
            block_size=drafter.shape.positions,
            steps=self._passes.steps,
            rule=CommitRule(drafter.mask_token_id, top_k=0),
            chain=drafter.chain,
        )
        return trajectory.endpoint[:, 1:].cpu()

    def keep(self, rows: Tensor) -> None:
        """Go on with these contexts only."""
        rows = rows.to(self._hidden_states.device)
        if self._context.is_filled:
            # They are projected already: of the features only the shape is still read.
            self._hidden_states = self._hidden_states[: len(rows)]
        else:
            self._hidden_states = self._hidden_states[rows]
        self._context.select(rows)
