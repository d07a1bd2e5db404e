"""Stage II: the one-pass student as a SpecForge training strategy (Algorithm 2).

Shapes: n blocks of a sample, B block size, R rows, k retained ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from specforge.runtime.contracts import TrainBatch
from specforge.training.strategies.base import DraftTrainStrategy, StepContext, StepOutput
from torch import Tensor, nn

from specforge_dstill.maths.block_shape import BlockShape
from specforge_dstill.maths.blocks import reference_blocks
from specforge_dstill.maths.root_schedule import RootSchedule, draw_states
from specforge_dstill.maths.trajectory import masked_at, state_at
from specforge_dstill.maths.trajectory_weights import agreement_weights
from specforge_dstill.modes.block_batch import SampleBlocks
from specforge_dstill.modes.block_step import BlockStep
from specforge_dstill.modes.checkpoints import weights_to_save
from specforge_dstill.modes.divergence import LossWatch
from specforge_dstill.modes.draws import sample_generator
from specforge_dstill.modes.records import RecordSource
from specforge_dstill.modes.samples import Sample, samples_of
from specforge_dstill.option_sections import StudentOptions
from specforge_dstill.trajectory_store import SampleRecord


@dataclass(frozen=True)
class StudentDraw:
    """Draws the blocks and states of Stage II for one sample.

    Attributes:
        num_anchors: the most blocks that a sample gives to a step, drawn among those recorded.
        options: the optional weights.
    """

    shape: BlockShape
    mask_token_id: int
    num_anchors: int
    options: StudentOptions

    def __call__(
        self,
        sample: Sample,
        record: SampleRecord,
        generator: torch.Generator,
        *,
        p_root: float,
    ) -> SampleBlocks:
        """Pick recorded blocks, a state of each, and rebuild it (Eq. 8)."""
        chosen = _pick(len(record.anchors), self.num_anchors, generator)
        anchors, trajectory = record.anchors[chosen], record.trajectory[chosen]
        blocks = reference_blocks(
            sample.input_ids, sample.loss_mask, anchors, block_size=self.shape.positions
        )
        t = draw_states(trajectory.commit_pass, p_root=p_root, generator=generator)
        masked = self.shape.in_input(masked_at(trajectory.commit_pass, t))
        supervised = blocks.scored & masked
        weights = agreement_weights(
            trajectory.endpoint,
            blocks.tokens,
            blocks.scored,
            first=self.options.first_mismatch_weight,
            decay=self.options.mismatch_decay,
        )
        ids, logp = trajectory.committing()
        return SampleBlocks(
            anchors=anchors,
            inputs=state_at(
                trajectory.endpoint, trajectory.commit_pass, t, mask_token_id=self.mask_token_id
            ),
            targets=trajectory.endpoint,
            reference=blocks.tokens,
            scored=blocks.scored,
            supervised=supervised,
            root=masked[:, 1:].all(1),
            weights=weights * supervised,
            top_ids=_with_anchor(ids),
            top_logp=_with_anchor(logp),
        )


def _pick(available: int, most: int, generator: torch.Generator) -> Tensor:
    """At most ``most`` of ``available`` indices, ascending."""
    return torch.randperm(available, generator=generator)[:most].sort().values


def _with_anchor(rows: Tensor) -> Tensor:
    """Give [n, B-1, k] a row for the anchor, which is never supervised."""
    return torch.cat([torch.zeros_like(rows[:, :1]), rows], dim=1)


class StudentStrategy(DraftTrainStrategy):
    """Trajectory consistency distillation (Eq. 3, 8 to 12).

    Logged: ``loss``, ``ce``, ``kd``, ``acc`` (against the endpoint), ``p_root``, ``masked`` (the
    mean number of supervised positions a block) and ``accept_length`` (teacher-forced, against
    the data, of the step's root states; anchor included). With the target's distributions also
    ``l1`` and ``confidence``.
    """

    name = "dstill_student"

    def __init__(
        self,
        step: BlockStep,
        draw: StudentDraw,
        *,
        records: RecordSource,
        schedule: RootSchedule,
        seed: int,
    ) -> None:
        self._step = step
        self.required_features = step.features
        self._draw = draw
        self._records = records
        self._schedule = schedule
        self._seed = seed
        self._watch = LossWatch()

    def trainable_module(self) -> nn.Module:
        return self._step.model

    def forward_loss(self, batch: TrainBatch, ctx: StepContext | None = None) -> StepOutput:
        self._watch.look()
        self.validate_batch(batch)
        p_root = self._schedule.p_root(progress_of(ctx))
        hidden_states = batch.tensors["hidden_states"]
        drawn = self._draw_batch(
            samples_of(batch), hidden_states, p_root=p_root, visit=ctx.global_step if ctx else 0
        )
        alpha = self._step.options.student.alpha
        blocks, loss = self._step(drawn, batch.tensors, alpha=alpha)
        self._watch.note(loss.numerator)
        weights = blocks.weights[blocks.supervised]
        total = weights.sum()
        rows = blocks.supervised.sum().float()
        correct = (loss.predicted == blocks.targets[blocks.supervised]).sum()
        return StepOutput(
            loss=loss.numerator / total.clamp(min=torch.finfo(total.dtype).tiny),
            metrics={"p_root": p_root},
            ratio_metrics={
                "ce": ((weights * loss.nll).sum(), total),
                "kd": ((weights * loss.kl).sum(), total),
                "acc": (correct.float(), rows),
                "masked": (rows, blocks.supervised.any(-1).sum().float()),
                "accept_length": blocks.root_acceptance(loss.predicted),
                **loss.target_metrics(weights),
            },
            # Eq. 12: numerator and denominator are summed over ranks before dividing.
            loss_terms=(loss.numerator, total),
        )

    def checkpoint_state_filter(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        return weights_to_save(state_dict)

    def _draw_batch(
        self, samples: list[Sample], hidden_states: Tensor, *, p_root: float, visit: int
    ) -> list[SampleBlocks]:
        """Draw a state for every block; at the root throughout if nothing would be supervised.

        Algorithm 2 skips a batch of zero weight. It cannot happen at the root, where every
        recorded block has a scored position, so the batch is used there instead of wasted.
        """
        records = self._records.records(samples, hidden_states, visit=visit)
        for probability in (p_root, 1.0):
            drawn = [
                self._draw(
                    sample,
                    record,
                    sample_generator(self._seed, sample.sample_id, visit),
                    p_root=probability,
                )
                for sample, record in zip(samples, records, strict=True)
            ]
            if any(blocks.supervised.any() for blocks in drawn):
                break
        return drawn


def progress_of(ctx: StepContext | None) -> float:
    """Training progress in [0, 1]; the end of training when the horizon is unknown."""
    if ctx is None or not ctx.total_steps:
        return 1.0
    return min(ctx.global_step / ctx.total_steps, 1.0)


def student_strategy(
    step: BlockStep, records: RecordSource, *, num_anchors: int, seed: int
) -> StudentStrategy:
    """Put Stage II together for a drafter and a source of its teacher's trajectories."""
    options = step.options.student
    draw = StudentDraw(
        shape=step.drafter.shape,
        mask_token_id=step.drafter.mask_token_id,
        num_anchors=num_anchors,
        options=options,
    )
    schedule = RootSchedule(
        start=options.p_root_start,
        end=options.p_root_end,
        warmup=options.p_root_warmup,
        cooldown=options.p_root_cooldown,
    )
    return StudentStrategy(step, draw, records=records, schedule=schedule, seed=seed)
