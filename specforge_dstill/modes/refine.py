"""The frozen teacher's K passes over the blocks of one sample, as a record (Algorithm 1).

Shapes: S sequence length, n blocks, L target layers, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specforge_dstill.maths.rollout import CommitRule
from specforge_dstill.modes.drafter import BlockDrafter, rollout_blocks
from specforge_dstill.modes.draws import sample_generator
from specforge_dstill.modes.samples import Sample
from specforge_dstill.options import DstillOptions
from specforge_dstill.token_hash import token_hash
from specforge_dstill.trajectory_store import SampleRecord


@dataclass(frozen=True)
class Refiner:
    """Refines blocks of one sample at a time, without gradients.

    Attributes:
        drafter: the teacher, in evaluation mode.
        seed: ``training.seed``, of sampled commitment.
        every_pass: record the distributions of every pass, not of the committing one only.
    """

    drafter: BlockDrafter
    options: DstillOptions
    seed: int
    every_pass: bool = False

    def __call__(
        self, sample: Sample, hidden_states: Tensor, anchors: Tensor, *, commit_key: str
    ) -> SampleRecord:
        """The record of the blocks at ``anchors``.

        Args:
            hidden_states: [S, L * H] of the sample; converted to the teacher's dtype and device.
            anchors: [n] int64, ascending, on the CPU.
            commit_key: with seed and sample, the key of sampled commitment's own generator.
        """
        head = self.drafter.lm_head.weight
        trajectory = rollout_blocks(
            self.drafter,
            hidden_states.to(head),
            anchors.to(head.device),
            sample.input_ids[anchors].to(head.device),
            steps=self.options.steps,
            rule=self.rule,
            generator=self._generator(sample.sample_id, commit_key, head.device),
            rows_per_tile=self.options.rows_per_tile,
        )
        return SampleRecord(
            sample_id=sample.sample_id,
            token_hash=token_hash(sample.input_ids),
            length=len(sample.input_ids),
            anchors=anchors,
            trajectory=trajectory.to("cpu"),
        )

    @property
    def rule(self) -> CommitRule:
        """The rule that the ``dstill.collect`` options describe."""
        collect = self.options.collect
        return CommitRule(
            mask_token_id=self.drafter.mask_token_id,
            top_k=collect.top_k,
            every_pass=self.every_pass,
            temperature=collect.temperature if collect.commit == "sampled" else 0.0,
        )

    def _generator(
        self, sample_id: str, commit_key: str, device: torch.device
    ) -> torch.Generator | None:
        if self.options.collect.commit == "greedy":
            return None
        key = sample_generator(self.seed, sample_id, commit_key).initial_seed()
        return torch.Generator(device).manual_seed(key)
