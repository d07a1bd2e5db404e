"""Stage I: the partial-mask teacher as a SpecForge training strategy.

Shapes: n blocks of a sample, B positions of a block, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from specforge.runtime.contracts import TrainBatch
from specforge.training.strategies.base import DraftTrainStrategy, StepContext, StepOutput
from torch import nn

from specforge_dstill.maths.anchors import draw_anchors
from specforge_dstill.maths.block_shape import BlockShape
from specforge_dstill.maths.blocks import reference_blocks
from specforge_dstill.maths.corruption import corrupt, draw_reveal
from specforge_dstill.maths.reveal_schedule import reveal_levels
from specforge_dstill.maths.teacher_loss import teacher_row_weights
from specforge_dstill.modes.block_batch import SampleBlocks
from specforge_dstill.modes.block_step import BlockStep
from specforge_dstill.modes.checkpoints import weights_to_save
from specforge_dstill.modes.divergence import LossWatch
from specforge_dstill.modes.draws import sample_generator
from specforge_dstill.modes.samples import Sample, samples_of
from specforge_dstill.option_sections import TeacherOptions

# A draw that leaves nothing to predict is repeated. After so many (a batch of very few, very
# short blocks) the root is taken, which always has a scored position.
REDRAWS = 100


@dataclass(frozen=True)
class TeacherDraw:
    """Draws the blocks of Stage I for one sample.

    Attributes:
        levels: reveal probabilities, Eq. 5.
        num_anchors: the most blocks that a sample gives to a step.
        options: the optional weights.
    """

    shape: BlockShape
    mask_token_id: int
    levels: tuple[float, ...]
    num_anchors: int
    options: TeacherOptions

    def __call__(
        self, sample: Sample, generator: torch.Generator, *, root: bool = False
    ) -> SampleBlocks:
        """Draw anchors, a reveal level per block and the revealed positions.

        ``root`` fixes the level at 0.
        """
        anchors = draw_anchors(sample.loss_mask, count=self.num_anchors, generator=generator)
        blocks = reference_blocks(
            sample.input_ids, sample.loss_mask, anchors, block_size=self.shape.positions
        )
        levels = (0.0,) if root else self.levels
        revealed = draw_reveal(blocks, levels=levels, generator=generator)
        masked = self.shape.in_input(~revealed)
        supervised = blocks.scored & masked
        weights, _ = teacher_row_weights(
            supervised, gamma=self.options.position_decay, alpha_m=self.options.mask_count_alpha
        )
        return SampleBlocks(
            anchors=anchors,
            inputs=corrupt(blocks.tokens, ~masked, mask_token_id=self.mask_token_id),
            targets=blocks.tokens,
            reference=blocks.tokens,
            scored=blocks.scored,
            supervised=supervised,
            root=masked[:, 1:].all(1),
            weights=weights,
            top_ids=blocks.tokens.new_zeros(*blocks.tokens.shape, 0),
            top_logp=weights.new_zeros(*blocks.tokens.shape, 0),
        )


class TeacherStrategy(DraftTrainStrategy):
    """Partial-mask training (Eq. 2; Eq. 6 and 7 when their weights are on).

    Logged: ``loss``, ``acc`` over masked scored positions, and ``accept_length``: the
    teacher-forced acceptance length, anchor included, of the step's blocks that are at the root.
    With the target's distributions ``l1``, and ``confidence``: that head's cross-entropy.
    """

    name = "dstill_teacher"

    def __init__(self, step: BlockStep, draw: TeacherDraw, *, seed: int) -> None:
        self._step = step
        self.required_features = step.features
        self._draw = draw
        self._seed = seed
        self._watch = LossWatch()

    def trainable_module(self) -> nn.Module:
        return self._step.model

    def forward_loss(self, batch: TrainBatch, ctx: StepContext | None = None) -> StepOutput:
        self._watch.look()
        self.validate_batch(batch)
        drawn = self._draw_batch(samples_of(batch), visit=ctx.global_step if ctx else 0)
        blocks, loss = self._step(drawn, batch.tensors)
        self._watch.note(loss.numerator)
        correct = (loss.predicted == blocks.targets[blocks.supervised]).sum()
        # The mean of Eq. 2 is over non-empty blocks, summed over ranks before dividing.
        count = blocks.supervised.any(-1).sum()
        return StepOutput(
            loss=loss.numerator / count.clamp(min=1),
            metrics={},
            ratio_metrics={
                "acc": (correct.float(), blocks.supervised.sum().float()),
                "accept_length": blocks.root_acceptance(loss.predicted),
                **loss.target_metrics(blocks.weights[blocks.supervised]),
            },
            loss_terms=(loss.numerator, count.float()),
        )

    def checkpoint_state_filter(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        return weights_to_save(state_dict)

    def _draw_batch(self, samples: list[Sample], *, visit: int) -> list[SampleBlocks]:
        """Draw until some position of the batch is masked and scored.

        That is Eq. 2's "batches with no non-empty block are skipped", without an optimizer step
        that has nothing to do.
        """
        generators = [sample_generator(self._seed, sample.sample_id, visit) for sample in samples]
        pairs = list(zip(samples, generators, strict=True))
        for _ in range(REDRAWS):
            drawn = [self._draw(sample, generator) for sample, generator in pairs]
            if any(blocks.supervised.any() for blocks in drawn):
                return drawn
        return [self._draw(sample, generator, root=True) for sample, generator in pairs]


def teacher_strategy(step: BlockStep, *, num_anchors: int, seed: int) -> TeacherStrategy:
    """Put Stage I together for a drafter."""
    drafter, options = step.drafter, step.options
    draw = TeacherDraw(
        shape=drafter.shape,
        mask_token_id=drafter.mask_token_id,
        levels=reveal_levels(drafter.shape.positions, options.steps),
        num_anchors=num_anchors,
        options=options.teacher,
    )
    return TeacherStrategy(step, draw, seed=seed)
