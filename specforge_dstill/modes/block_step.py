"""One forward pass over drawn blocks and its loss: what both stages share.

Shapes: b samples, S sequence, L target layers, H hidden size, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from specforge.runtime.contracts import TrainBatch
from torch import Tensor, nn

from specforge_dstill.data.feature_files import not_finite
from specforge_dstill.maths.distillation_loss import Retained
from specforge_dstill.maths.linear_loss import LinearLoss, linear_loss
from specforge_dstill.modes.block_batch import BlockBatch, SampleBlocks, stack_blocks
from specforge_dstill.modes.drafter import BlockDrafter
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
class BlockStep:
    """The drafter, perhaps wrapped in DDP or FSDP, and the loss behind it.

    Attributes:
        model: the wrapped module; the forward pass goes through it.
        options: the run's ``dstill:`` section.
    """

    model: nn.Module
    options: DstillOptions

    @property
    def drafter(self) -> BlockDrafter:
        """The drafter inside the wrapper, for its frozen parts and constants."""
        return cast(BlockDrafter, getattr(self.model, "module", self.model))

    def __call__(
        self, drawn: Sequence[SampleBlocks], hidden_states: Tensor, *, alpha: float = 0.0
    ) -> tuple[BlockBatch, LinearLoss]:
        """Run the blocks and form the loss over their supervised rows.

        Args:
            drawn: the blocks of each of the b samples.
            hidden_states: [b, S, L * H] features; converted to the drafter's dtype and device.
            alpha: the share of the teacher's distribution; 0 is cross-entropy alone.
        """
        drafter = self.drafter
        head = drafter.frozen_head
        blocks = stack_blocks(drawn, mask_token_id=drafter.mask_token_id, device=head.weight.device)
        states = self.model(blocks.inputs, blocks.anchors, hidden_states.to(head.weight))
        rows = blocks.supervised
        has_teacher = blocks.top_ids.shape[-1] > 0
        loss = linear_loss(
            states[rows],
            head,
            blocks.targets[rows],
            blocks.weights[rows],
            mask_token_id=drafter.mask_token_id,
            retained=Retained(blocks.top_ids[rows], blocks.top_logp[rows]) if has_teacher else None,
            alpha=alpha,
            rows_per_tile=self.options.rows_per_tile,
        )
        return blocks, loss


def draft_weights(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The draft's part of a drafter's state, under the names SpecForge gives it on disk."""
    prefix = "draft_model."
    return {
        name.removeprefix(prefix): value
        for name, value in state_dict.items()
        if name.startswith(prefix)
    }
