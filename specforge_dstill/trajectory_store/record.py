"""One sample's trajectories, and what a store demands of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specforge_dstill.errors import UserError
from specforge_dstill.maths.trajectory import Trajectory
from specforge_dstill.trajectory_store.identity import MAX_TOKEN_IDS, StoreIdentity


@dataclass(frozen=True, eq=False)
class SampleRecord:
    """What the teacher did at each anchor of one sample.

    Attributes:
        sample_id: the feature file's path relative to its cache.
        token_hash: of the sample's token ids, see ``specforge_dstill.token_hash``.
        length: S, the sample's tokens.
        anchors: [n] int64, positions in the sample; n may be 0.
        trajectory: of those n blocks, in the anchors' order.
    """

    sample_id: str
    token_hash: str
    length: int
    anchors: Tensor
    trajectory: Trajectory


def check_record(record: SampleRecord, identity: StoreIdentity) -> None:
    """Refuse a record that a store of this identity cannot give back as it is.

    Raises: ``ValueError`` for shapes or values outside their range (a mistake in the program);
    ``UserError`` for NaN log-probabilities (broken weights or features).
    """
    trajectory, blocks = record.trajectory, len(record.anchors)
    top = (blocks, identity.passes, identity.block_size - 1, identity.top_k)
    shapes = {
        "anchors": (record.anchors, (blocks,)),
        "endpoint": (trajectory.endpoint, (blocks, identity.block_size)),
        "commit_pass": (trajectory.commit_pass, (blocks, identity.block_size)),
        "top_ids": (trajectory.top_ids, top),
        "top_logp": (trajectory.top_logp, top),
    }
    for name, (tensor, shape) in shapes.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} of sample {record.sample_id} is {tuple(tensor.shape)}, not {shape}"
            )
    last = identity.vocab_size - 1
    ranges = {
        "length": (torch.tensor([record.length]), 0, MAX_TOKEN_IDS),
        "anchors": (record.anchors, 0, record.length - 1),
        "endpoint": (trajectory.endpoint, 0, last),
        "commit_pass": (trajectory.commit_pass, 0, identity.steps),
        "top_ids": (trajectory.top_ids, -1, last),
    }
    for name, (tensor, low, high) in ranges.items():
        if tensor.numel() and not (int(tensor.min()) >= low and int(tensor.max()) <= high):
            raise ValueError(f"{name} of sample {record.sample_id} leaves [{low}, {high}]")
    if bool(torch.isnan(trajectory.top_logp).any()):
        raise UserError(
            f"the teacher gave NaN log-probabilities for sample {record.sample_id}; "
            "check the teacher's weights and that sample's features"
        )
