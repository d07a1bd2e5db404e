"""Block acceptance of a drafter in training, on samples that it does not learn from.

A block is drafted at each of a sample's anchors from the fully masked root, greedily, in one pass
or in several, and its accepted prefix is counted against the sample's own continuation. With the
anchor, tau = 1 + mean accepted length, over all blocks of all samples.

How that relates to the tau of ``evaluate --replay``: a replayed round starts where the last one
ended, so that the rounds crowd where drafts are short; these blocks start at places that are
evenly spread, whatever the drafter does there. Drafters are ranked much alike, but the number
here is mostly the higher one of the two, and the two must not be compared. And the continuation
here is what the cache holds, which is the target's greedy answer only if it was made so.

Shapes: S sequence, W feature width, n blocks, B block size, P numbers of passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from specforge.runtime.contracts import TrainBatch
from torch import Tensor

from specforge_dstill.data.feature_files import HIDDEN, require_finite
from specforge_dstill.maths.acceptance import accepted_prefix
from specforge_dstill.maths.anchors import spread_anchors
from specforge_dstill.maths.blocks import reference_blocks
from specforge_dstill.maths.rollout import CommitRule
from specforge_dstill.modes.drafter import BlockDrafter, rollout_blocks


@dataclass(frozen=True)
class HeldOutBlocks:
    """Scores a drafter on the blocks of a sample: the same ones at every call.

    Attributes:
        passes: each number of passes to draft with.
        anchors_per_sample: the most blocks of a sample.
        rows_per_tile: rows through the LM head at once.
    """

    drafter: BlockDrafter
    passes: tuple[int, ...]
    anchors_per_sample: int
    rows_per_tile: int

    def sums(self, input_ids: Tensor, loss_mask: Tensor, hidden_states: Tensor) -> Tensor:
        """Sum of the acceptance lengths, anchor included, and count of blocks: [P, 2] float64.

        A position past the end of the answer, or of another turn, ends an accepted prefix.

        Args:
            input_ids, loss_mask: [S], perhaps padded: padding is not scored.
            hidden_states: [S, W], converted to the drafter's dtype and device.
        """
        input_ids, loss_mask = input_ids.cpu(), loss_mask.cpu()
        anchors = spread_anchors(loss_mask, count=self.anchors_per_sample)
        blocks = reference_blocks(
            input_ids, loss_mask, anchors, block_size=self.drafter.shape.positions
        )
        head = self.drafter.lm_head.weight
        sums = torch.zeros(len(self.passes), 2, dtype=torch.float64)
        for row, steps in enumerate(self.passes):
            drafted = rollout_blocks(
                self.drafter,
                hidden_states.to(head),
                anchors.to(head.device),
                input_ids[anchors].to(head.device),
                steps=steps,
                rule=CommitRule(self.drafter.mask_token_id, top_k=0),
                rows_per_tile=self.rows_per_tile,
            ).endpoint.cpu()
            matches = (drafted == blocks.tokens) & blocks.scored
            sums[row, 0] = (1 + accepted_prefix(matches[:, 1:])).sum()
            sums[row, 1] = len(anchors)
        return sums

    def over(self, batches: Iterable[TrainBatch], *, rank: int, ranks: int, samples: int) -> Tensor:
        """The same over a rank's share of the cache: [P, 2] float64.

        SpecForge deals samples to the ranks in turn, and some twice until every rank has as many:
        those that are dealt again are not scored again.

        Args:
            samples: how many the cache holds.

        Raises: ``UserError`` naming the sample whose states are NaN or infinite.
        """
        sums, dealt = torch.zeros(len(self.passes), 2, dtype=torch.float64), rank
        for batch in batches:
            tensors = batch.tensors
            for row, sample_id in enumerate(batch.sample_ids):
                if dealt < samples:
                    states = tensors[HIDDEN][row]
                    require_finite(sample_id, states)
                    sums += self.sums(tensors["input_ids"][row], tensors["loss_mask"][row], states)
                dealt += ranks
        return sums
