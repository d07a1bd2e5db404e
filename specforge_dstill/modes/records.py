"""Where the student's trajectories come from: a store, or the teacher itself at each step.

Both give a :class:`SampleRecord` a sample; what the student does with it is the same.

Shapes: b samples, S sequence, L target layers, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from specforge_dstill.errors import UserError
from specforge_dstill.maths.anchors import draw_anchors
from specforge_dstill.modes.assembly import list_samples
from specforge_dstill.modes.checkpoints import build_draft, warn_of_other_teacher, weights_hash
from specforge_dstill.modes.checks import check_samples, check_store
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.draws import sample_generator
from specforge_dstill.modes.refine import Refiner
from specforge_dstill.modes.samples import Sample
from specforge_dstill.options import TEACHER_OPTION, DstillOptions
from specforge_dstill.trajectory_store import SampleRecord, TrajectoryReader, open_store


class RecordSource(Protocol):
    """Gives the trajectories of a step's samples."""

    def records(
        self, samples: Sequence[Sample], hidden_states: Tensor, *, visit: int
    ) -> list[SampleRecord]:
        """One record a sample, on the CPU.

        Args:
            hidden_states: [b, S, L * H], the samples' features, padded.
            visit: the optimizer step.
        """
        ...

    def contract(self) -> dict[str, Any]:
        """What a resumed run must share with the run that it continues."""
        ...


@dataclass(frozen=True)
class StoredRecords:
    """Those that ``dstill_collect`` wrote: the same blocks at every visit."""

    store: TrajectoryReader

    def records(
        self, samples: Sequence[Sample], hidden_states: Tensor, *, visit: int
    ) -> list[SampleRecord]:
        return [self.store.record_for(sample.sample_id, sample.input_ids) for sample in samples]

    def contract(self) -> dict[str, Any]:
        # A resumed run no longer names the teacher, so its store cannot be checked against it.
        return {"dstill_store_digest": self.store.digest}


@dataclass(frozen=True)
class LiveTeacher:
    """``dstill.trajectories: online``: fresh blocks at each visit, rolled out on the spot.

    Attributes:
        refine: with the frozen teacher, which is no part of the trained module: neither DDP nor
            FSDP nor a checkpoint knows of it.
        num_anchors: the most blocks that a sample gives to a step, as in Stage I.
        teacher_hash: of its weights.
    """

    refine: Refiner
    num_anchors: int
    teacher_hash: str

    def records(
        self, samples: Sequence[Sample], hidden_states: Tensor, *, visit: int
    ) -> list[SampleRecord]:
        """Draws are keyed by seed, sample and step: no rank, batch or resume changes them."""
        records = []
        for sample, features in zip(samples, hidden_states, strict=True):
            anchors = draw_anchors(
                sample.loss_mask,
                count=self.num_anchors,
                generator=sample_generator(self.refine.seed, sample.sample_id, f"{visit} anchors"),
            )
            features = features[: len(sample.input_ids)]
            records.append(self.refine(sample, features, anchors, commit_key=f"{visit} commit"))
        return records

    def contract(self) -> dict[str, Any]:
        collect = self.refine.options.collect
        return {
            "dstill_teacher_hash": self.teacher_hash,
            "dstill_rollout": (
                ("commit", collect.commit),
                ("temperature", collect.temperature),
                ("top_k", collect.top_k),
            ),
        }


def record_source(
    config: Any, draft_config: Any, student: BlockDrafter, options: DstillOptions
) -> RecordSource:
    """The source that ``dstill.trajectories`` names, checked against the run.

    Raises: ``UserError`` for a store that does not fit, or a teacher that cannot be loaded.
    """
    if options.online:
        return live_teacher(config, draft_config, student, options)
    store = open_store(options.trajectories)
    check_store(store, config, options, student)
    check_samples(store, list_samples(config.data.hidden_states_path))
    return StoredRecords(store)


def live_teacher(
    config: Any, draft_config: Any, student: BlockDrafter, options: DstillOptions
) -> LiveTeacher:
    """Load the teacher of online trajectories, beside the student's frozen parts.

    Args:
        config: SpecForge's config of the run.
        draft_config: of the student; the teacher's architecture is the same.
        student: whose embeddings and head the teacher reads, too: there is one copy of them.

    Raises: ``UserError`` when there is no teacher to load at ``dstill.student.teacher``.
    """
    source = config.model.model_copy(update={"draft_checkpoint_path": options.student.teacher})
    try:
        draft = build_draft(config.model_copy(update={"model": source}), draft_config)
    except UserError as error:
        raise UserError(f"{TEACHER_OPTION}: {error}") from error
    warn_of_other_teacher(str(options.student.teacher))
    teacher = BlockDrafter(
        draft.requires_grad_(False),
        lm_head=student.lm_head,
        embed_tokens=student.embed_tokens,
        mask_token_id=student.mask_token_id,
        attention_backend=student.attention_backend,
        blocks_per_group=student.blocks_per_group,
        logit_softcap=student.logit_softcap,
    ).eval()
    return LiveTeacher(
        Refiner(teacher, options, config.training.seed),
        num_anchors=config.training.num_anchors,
        teacher_hash=weights_hash(draft),
    )
