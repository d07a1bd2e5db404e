"""The samples of a step, as their blocks are drawn from them. Shapes: S sequence."""

from __future__ import annotations

from dataclasses import dataclass

from specforge.runtime.contracts import TrainBatch
from torch import Tensor

from specforge_dstill.data.feature_files import not_finite


@dataclass(frozen=True)
class Sample:
    """One sequence without its padding: ids and loss mask are [S] on the CPU."""

    sample_id: str
    input_ids: Tensor
    loss_mask: Tensor


def samples_of(batch: TrainBatch) -> list[Sample]:
    """Cut the padding off each sample of a batch (its ``lengths`` come from our collator).

    Raises: ``UserError`` naming the sample whose states are NaN or infinite.
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
