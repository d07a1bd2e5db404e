"""The peer: SpecForge's own DFlash step, and a plain way to collect."""

from __future__ import annotations

from typing import Any

import torch
from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
from torch import Tensor


class Peer(OnlineDFlashModel):
    """SpecForge's training model on given anchors, so that both sides do the same work.

    SpecForge draws its anchors in ``_sample_anchor_positions``; nothing else is changed. Should
    a later version draw them elsewhere, ``given`` stays True and the bench says so.
    """

    anchors: Tensor
    given = False

    def give(self, anchors: Tensor) -> None:
        """The anchors of the next step, [b, N]."""
        self.anchors, self.given = anchors, True

    def _sample_anchor_positions(self, *_: Any) -> tuple[Tensor, Tensor]:
        self.given = False
        return self.anchors, torch.ones_like(self.anchors, dtype=torch.bool)

    def step(self, data: dict[str, Tensor]) -> None:
        """Forward and backward."""
        loss, _, _ = self(data["input_ids"], data["hidden_states"], data["loss_mask"])
        loss.backward()
        if self.given:
            raise RuntimeError("SpecForge no longer draws anchors where the bench gives them")

    @torch.no_grad()
    def plain_passes(self, data: dict[str, Tensor], *, steps: int, top_k: int) -> None:
        """K forward passes with full logits, log-softmax and top-k at every position."""
        for _ in range(steps):
            *_, states = self._forward_draft_blocks(
                data["input_ids"], data["hidden_states"], data["loss_mask"]
            )
            self.lm_head(states).float().log_softmax(dim=-1).topk(top_k, dim=-1)
