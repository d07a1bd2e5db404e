"""One forward pass over drawn blocks and its loss: what both stages share.

Shapes: b samples, S sequence, L target layers, H hidden size, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

from specforge.runtime.contracts import TrainBatch
from torch import Tensor, nn

from specforge_dstill.data.feature_files import HIDDEN, LAST, not_finite
from specforge_dstill.maths.correction import Correction
from specforge_dstill.maths.distillation_loss import Retained
from specforge_dstill.maths.linear_loss import LinearLoss, TargetRows, linear_loss
from specforge_dstill.maths.target_distance import acceptance
from specforge_dstill.modes.block_batch import BlockBatch, SampleBlocks, stack_blocks
from specforge_dstill.modes.divergence import LossWatch, require_finite_weights
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.feature_source import FEATURES
from specforge_dstill.modes.markov_head import HeadedStates
from specforge_dstill.options import DstillOptions


@dataclass(frozen=True)
class Sample:
    """One sequence without its padding: ids and loss mask are [S] on the CPU."""

    sample_id: str
    input_ids: Tensor
    loss_mask: Tensor


def samples_of(batch: TrainBatch) -> list[Sample]:
    """Cut the padding off each sample of a batch (its ``lengths`` come from our collator).

    Errors: ``UserError`` naming the sample whose states are NaN or infinite.
    """
    finite = batch.tensors["finite"].tolist()
    if not all(finite):
        pairs = zip(batch.sample_ids, finite, strict=True)
        raise not_finite([sample_id for sample_id, fine in pairs if not fine])
    lengths = batch.tensors["lengths"].tolist()
    return [
        Sample(
            sample_id=sample_id,
            input_ids=batch.tensors["input_ids"][row, :length].cpu(),
            loss_mask=batch.tensors["loss_mask"][row, :length].cpu(),
        )
        for row, (sample_id, length) in enumerate(zip(batch.sample_ids, lengths, strict=True))
    ]


@dataclass(frozen=True)
class Shares:
    """Of the parts of the loss. DFlash drafters learn likelihoods alone.

    Attributes:
        likelihood: of cross-entropy and KL together.
        l1: of the distance to the target's distribution.
        confidence: of the confidence head's cross-entropy against the acceptance that it predicts.
    """

    likelihood: float = 1.0
    l1: float = 0.0
    confidence: float = 0.0


@dataclass(frozen=True)
class BlockLoss(LinearLoss):
    """The loss over the supervised rows.

    Attributes:
        confidence: [R], the confidence head's cross-entropy, detached; None without that head.
        learns_target: whether the target's distributions count.
    """

    confidence: Tensor | None
    learns_target: bool

    def target_metrics(self, weights: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Weighted sums and their weights, [R], of what is learned from the target: for the log."""
        terms = {"l1": self.l1 if self.learns_target else None, "confidence": self.confidence}
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
    _watch: LossWatch = field(default_factory=LossWatch, repr=False, compare=False)

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

        Errors: ``UserError`` when the loss of the call before was NaN or infinite.
        """
        self._watch.look()
        drafter = self.drafter
        head = drafter.frozen_head
        blocks = stack_blocks(drawn, mask_token_id=drafter.mask_token_id, device=head.weight.device)
        found = self._run(blocks, features[HIDDEN].to(head.weight))
        rows = blocks.supervised
        target = None
        if self.learns_target:
            own = blocks.target_states(features[LAST].to(head.weight))
            target = TargetRows(own, share=self.shares.l1)
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
        whole = self._with_confidence(loss, found, blocks)
        self._watch.note(whole.numerator)
        return blocks, whole

    def _run(self, blocks: BlockBatch, hidden_states: Tensor) -> HeadedStates:
        if not self.drafter.has_heads:
            states = self.model(blocks.inputs, blocks.anchors, hidden_states)
            return HeadedStates(states, None, None, None)
        found: HeadedStates = self.model(
            blocks.inputs, blocks.anchors, hidden_states, tokens=blocks.targets
        )
        return found

    def _with_confidence(
        self, loss: LinearLoss, found: HeadedStates, blocks: BlockBatch
    ) -> BlockLoss:
        """Add the confidence head's part; even at a share of 0, so that all weights take part."""
        terms = {part.name: getattr(loss, part.name) for part in fields(LinearLoss)}
        if found.confidence is None:
            return BlockLoss(**terms, confidence=None, learns_target=self.learns_target)
        entropy = nn.functional.binary_cross_entropy_with_logits(
            found.confidence[blocks.supervised[..., 1:]], acceptance(loss.l1), reduction="none"
        )
        weighted = (blocks.weights[blocks.supervised] * entropy).sum()
        terms["numerator"] = loss.numerator + self.shares.confidence * weighted
        return BlockLoss(**terms, confidence=entropy.detach(), learns_target=True)


def _correction(found: HeadedStates, rows: Tensor) -> Correction | None:
    if found.latents is None or found.weight is None:
        return None
    return Correction(found.latents[rows[..., 1:]], found.weight)


def draft_weights(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The draft's part of a drafter's state, under the names SpecForge gives it on disk.

    Errors: ``UserError`` for weights that are NaN or infinite.
    """
    prefix = "draft_model."
    weights = {
        name.removeprefix(prefix): value
        for name, value in state_dict.items()
        if name.startswith(prefix)
    }
    require_finite_weights(weights)
    return weights
