"""One forward pass over drawn blocks and its loss: what both stages share.

Shapes: b samples, S sequence, L target layers, H hidden size, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import cast

from torch import Tensor, nn

from specforge_dstill.data.feature_files import HIDDEN, LAST
from specforge_dstill.maths.correction import Correction
from specforge_dstill.maths.distillation_loss import Retained
from specforge_dstill.maths.linear_loss import LinearLoss, TargetRows, linear_loss
from specforge_dstill.maths.target_distance import acceptance
from specforge_dstill.modes.block_batch import BlockBatch, SampleBlocks, stack_blocks
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.feature_source import FEATURES
from specforge_dstill.modes.markov_head import HeadedStates
from specforge_dstill.options import DstillOptions


@dataclass(frozen=True)
class Shares:
    """Of the parts of the loss. DFlash drafters learn likelihoods alone.

    Attributes:
        likelihood: of cross-entropy and KL together.
        l1: of the distance to the target's distribution.
        confidence: of the confidence head's cross-entropy against the acceptance that it predicts.

    In Stage II both count up to a block's first mismatch with the data: after it the target's
    distribution, known in the data's context alone, is not that of the block.
    """

    likelihood: float = 1.0
    l1: float = 0.0
    confidence: float = 0.0


@dataclass(frozen=True)
class BlockLoss(LinearLoss):
    """The loss over the supervised rows.

    Attributes:
        confidence: [R], the confidence head's cross-entropy, detached; None without that head.
        counts: [R], see :class:`TargetRows`; None where nothing is learned from the target.
    """

    confidence: Tensor | None
    counts: Tensor | None

    def target_metrics(self, weights: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Weighted sums and their weights, [R], of what is learned from the target: for the log."""
        if self.counts is None:
            return {}
        weights = weights * self.counts
        terms = {"l1": self.l1, "confidence": self.confidence}
        return {
            name: ((weights * term).sum(), weights.sum())
            for name, term in terms.items()
            if term is not None
        }


@dataclass(frozen=True)
class BlockStep:
    """The drafter, perhaps wrapped in DDP or FSDP, and the loss behind it.

    Attributes:
        model: the wrapped module; the forward pass goes through it.
        options: the run's ``dstill:`` section.
        shares: of the parts of the loss.
    """

    model: nn.Module
    options: DstillOptions
    shares: Shares = Shares()

    @property
    def drafter(self) -> BlockDrafter:
        """The drafter inside the wrapper, for its frozen parts and constants."""
        return cast(BlockDrafter, getattr(self.model, "module", self.model))

    @property
    def learns_target(self) -> bool:
        """Whether the loss needs the target's distributions."""
        return self.shares.l1 > 0 or self.drafter.has_confidence

    @property
    def features(self) -> frozenset[str]:
        """The tensors of a batch that a step reads."""
        return frozenset((*FEATURES, LAST) if self.learns_target else FEATURES)

    def __call__(
        self, drawn: Sequence[SampleBlocks], features: Mapping[str, Tensor], *, alpha: float = 0.0
    ) -> tuple[BlockBatch, BlockLoss]:
        """Run the blocks and form the loss over their supervised rows.

        Args:
            drawn: the blocks of each of the b samples.
            features: of the batch: ``hidden_states`` [b, S, L * H] and, where the target's
                distributions count, ``target_last_hidden_states`` [b, S, H]; converted to the
                drafter's dtype and device.
            alpha: the share of the teacher's distribution; 0 is cross-entropy alone.
        """
        drafter = self.drafter
        head = drafter.frozen_head
        blocks = stack_blocks(drawn, mask_token_id=drafter.mask_token_id, device=head.weight.device)
        found = self._run(blocks, features[HIDDEN].to(head.weight))
        rows = blocks.supervised
        target = None
        if self.learns_target:
            own = blocks.target_states(features[LAST].to(head.weight))
            counts = blocks.in_context[rows].to(blocks.weights.dtype)
            target = TargetRows(own, share=self.shares.l1, counts=counts)
        has_teacher = blocks.top_ids.shape[-1] > 0
        loss = linear_loss(
            found.states[rows],
            head,
            blocks.targets[rows],
            blocks.weights[rows],
            mask_token_id=drafter.mask_token_id,
            retained=Retained(blocks.top_ids[rows], blocks.top_logp[rows]) if has_teacher else None,
            alpha=alpha,
            scale=self.shares.likelihood,
            correction=_correction(found, rows),
            target=target,
            rows_per_tile=self.options.rows_per_tile,
        )
        return blocks, self._with_confidence(loss, found, blocks, target)

    def _run(self, blocks: BlockBatch, hidden_states: Tensor) -> HeadedStates:
        if not self.drafter.has_heads:
            states = self.model(blocks.inputs, blocks.anchors, hidden_states)
            return HeadedStates(states, None, None, None)
        found: HeadedStates = self.model(
            blocks.inputs, blocks.anchors, hidden_states, tokens=blocks.targets
        )
        return found

    def _with_confidence(
        self, loss: LinearLoss, found: HeadedStates, blocks: BlockBatch, target: TargetRows | None
    ) -> BlockLoss:
        """Add the confidence head's part; even at a share of 0, so that all weights take part."""
        terms = {part.name: getattr(loss, part.name) for part in fields(LinearLoss)}
        counts = None if target is None else target.counts
        if found.confidence is None:
            return BlockLoss(**terms, confidence=None, counts=counts)
        assert target is not None, "a confidence head learns from the target"
        entropy = nn.functional.binary_cross_entropy_with_logits(
            found.confidence[blocks.supervised[..., 1:]], acceptance(loss.l1), reduction="none"
        )
        weighted = (blocks.weights[blocks.supervised] * target.counted(entropy)).sum()
        terms["numerator"] = loss.numerator + self.shares.confidence * weighted
        return BlockLoss(**terms, confidence=entropy.detach(), counts=counts)


def _correction(found: HeadedStates, rows: Tensor) -> Correction | None:
    if found.latents is None or found.weight is None:
        return None
    return Correction(found.latents[rows[..., 1:]], found.weight)
