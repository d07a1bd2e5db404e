"""The blocks of one step: drawn per sample, padded to one tensor, and what is measured on them.

Shapes: b samples, n blocks of one sample, N the most blocks of any sample, B block size,
R supervised rows, k retained ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.maths.acceptance import accepted_prefix
from specforge_dstill.maths.trajectory_weights import first_mismatch


@dataclass(frozen=True)
class SampleBlocks:
    """The blocks that one sample contributes to a step.

    Attributes:
        anchors: [n] int64.
        inputs: [n, B] int64, what the drafter sees.
        targets: [n, B] int64, what it should predict.
        reference: [n, B] int64, the data's own tokens.
        scored: [n, B] bool, inside the sequence and supervised; never the anchor.
        supervised: [n, B] bool, masked in the input and scored: the rows of the loss.
        root: [n] bool, whether the input shows nothing but the anchor.
        weights: [n, B] float32, the weight of each row, 0 where not supervised.
        top_ids, top_logp: [n, B, k], the teacher's distribution (Stage II); k = 0 in Stage I.
    """

    anchors: Tensor
    inputs: Tensor
    targets: Tensor
    reference: Tensor
    scored: Tensor
    supervised: Tensor
    root: Tensor
    weights: Tensor
    top_ids: Tensor
    top_logp: Tensor


@dataclass(frozen=True)
class BlockBatch(SampleBlocks):
    """The same for a batch: every field has a leading b, and n is N.

    Padding blocks have their anchor at 0 and no scored position.
    """

    @property
    def at_root(self) -> Tensor:
        """Blocks at the root, as drafting starts, that have a scored position. [b, N] bool."""
        return self.root & self.scored.any(-1)

    @property
    def in_context(self) -> Tensor:
        """Positions before which the block is the data's own text. [b, N, B] bool.

        There the target's distribution, which the cache knows in the data's context alone, is of
        the drafter's context, too: everywhere in Stage I, up to the first mismatch in Stage II.
        """
        everywhere = torch.ones_like(self.scored)
        last = first_mismatch(self.targets, self.reference, everywhere)[..., None]
        return torch.arange(everywhere.shape[-1], device=last.device) <= last

    def target_states(self, last_states: Tensor) -> Tensor:
        """Those of the target's last states that predict supervised rows: [b, S, H] -> [R, H]."""
        sample, block, position = self.supervised.nonzero(as_tuple=True)
        return last_states[sample, self.anchors[sample, block] + position - 1]

    def root_acceptance(self, predicted: Tensor) -> tuple[Tensor, Tensor]:
        """Teacher-forced acceptance lengths at the root, anchor included: their sum and count.

        Args:
            predicted: [R] int64, predictions of the supervised rows in row order.
        """
        grid = torch.full_like(self.reference, -1)
        grid[self.supervised] = predicted
        at_root = self.at_root
        matches = (grid == self.reference) & self.scored
        lengths = 1 + accepted_prefix(matches[at_root][:, 1:])
        return lengths.sum().float(), at_root.sum().float()


def stack_blocks(
    samples: Sequence[SampleBlocks], *, mask_token_id: int, device: torch.device
) -> BlockBatch:
    """Pad every sample to the same number of blocks and move the result to ``device``."""
    most = max(len(sample.anchors) for sample in samples)
    padding = {"inputs": mask_token_id}
    stacked: dict[str, Any] = {}
    for field in fields(SampleBlocks):
        value = padding.get(field.name, 0)
        rows = [_pad(getattr(sample, field.name), most, value) for sample in samples]
        stacked[field.name] = torch.stack(rows).to(device)
    return BlockBatch(**stacked)


def _pad(rows: Tensor, count: int, value: float) -> Tensor:
    missing = rows.new_full((count - len(rows), *rows.shape[1:]), value)
    return torch.cat([rows, missing])
