"""Which positions a block has, and at which of the drafter's input slots each is predicted.

A drafter reads the first ``slots`` tokens of a block, and each slot predicts the token ``shift``
positions on. DFlash predicts in place (0): the anchor's slot predicts nothing. DSpark predicts the
next token (1): the anchor's slot counts, and the last position has no slot, so that it is masked
whatever is known of it.

Only this file and the drafter's forward pass know of slots. Everywhere else a block is its
positions: the anchor at 0 and the proposals behind it, B of them in all.

Shapes: N blocks, B positions of a block, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Draft architectures whose slots predict the token after their own.
PREDICT_NEXT = ("DSparkDraftModel",)


@dataclass(frozen=True)
class BlockShape:
    """The shape of a drafter's blocks.

    Attributes:
        slots: tokens that the drafter reads of a block; what draft configs call ``block_size``.
        shift: how many positions on a slot predicts, 0 or 1.
    """

    slots: int
    shift: int = 0

    @classmethod
    def of(cls, draft_config: Mapping[str, Any]) -> BlockShape:
        """Of a draft config: its ``block_size`` and ``architectures``."""
        names = draft_config.get("architectures") or ()
        shift = int(any(name in PREDICT_NEXT for name in names))
        return cls(slots=int(draft_config["block_size"]), shift=shift)

    @property
    def positions(self) -> int:
        """B: the anchor and the proposals."""
        return self.slots + self.shift

    def read(self, tokens: Tensor) -> Tensor:
        """The tokens that the drafter reads: [..., B] -> [..., slots]."""
        return tokens[..., : self.slots]

    def by_position(self, states: Tensor) -> Tensor:
        """States of slots as those of the positions that they predict.

        [..., slots, H] -> [..., B, H]; a position that no slot predicts has zeros.
        """
        return torch.nn.functional.pad(states, (0, 0, self.shift, 0)) if self.shift else states

    def in_input(self, masked: Tensor) -> Tensor:
        """``masked`` [N, B] and with it the positions that the drafter never reads."""
        position = torch.arange(self.positions, device=masked.device)
        return masked | (position >= self.slots)
