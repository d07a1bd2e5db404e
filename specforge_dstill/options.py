"""The `dstill:` section of a run file: every option of ours, with its meaning and its bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from specforge_dstill.errors import UserError
from specforge_dstill.validation import dotted_keys, explain

_FUNCTION = re.compile(r"[\w.]+:[\w.]+")

Scalar = bool | int | float | str | None

# `dstill.trajectories: online`: no store; the teacher rolls out blocks in the student's step.
ONLINE = "online"
TEACHER_OPTION = "dstill.student.teacher"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TeacherOptions(Section):
    """Stage I, partial-mask training. Both weights are off by default, as in the paper."""

    position_decay: float | None = Field(
        None, gt=0, description="gamma of the position weight exp(-(i-1)/gamma), Eq. 6; null: off"
    )
    mask_count_alpha: float = Field(
        0.0, ge=0, description="alpha_m of the mask-count weight, Eq. 7; 0: off"
    )


class CollectOptions(Section):
    """Trajectory collection: the frozen teacher's K passes over each block, Algorithm 1."""

    top_k: int = Field(16, ge=1, description="token ids kept per position, with full-softmax logp")
    anchors_per_sample: int | None = Field(
        None, ge=1, description="blocks per sample, drawn by training.seed; null: every valid one"
    )
    record: Literal["commit", "full"] = Field(
        "commit", description="keep the committing pass's distributions, or every pass's"
    )
    commit: Literal["greedy", "sampled"] = Field(
        "greedy", description="commit the most probable token, or draw one"
    )
    temperature: float = Field(1.0, gt=0, description="of the draw, with commit: sampled")
    logp_dtype: Literal["float16", "float32"] = Field(
        "float16", description="how the store keeps log-probabilities"
    )
    shard_size: int = Field(64, ge=1, description="samples per file of the store")
    on_shard: str | None = Field(
        None,
        description="package.module:function, called with uri, index and path (null when the "
        "file is elsewhere) after each shard is in place, at least once: a call that raised or was "
        "cut off ends the finished collection with status 2, and the next run makes it again; "
        "null: none",
    )
    after_training: bool = Field(
        False, description="collect when dstill_teacher ends, in the same job, by its last weights"
    )

    @field_validator("on_shard")
    @classmethod
    def _names_a_function(cls, name: str | None) -> str | None:
        if name is not None and not _FUNCTION.fullmatch(name):
            raise ValueError(f"{name!r} is not of the form package.module:function")
        return name

    @model_validator(mode="after")
    def _temperature_needs_sampling(self) -> CollectOptions:
        if self.commit == "greedy" and self.temperature != 1.0:
            raise ValueError("dstill.collect.temperature needs dstill.collect.commit: sampled")
        return self


class StudentOptions(Section):
    """Stage II, trajectory distillation into one pass."""

    alpha: float = Field(
        0.2, ge=0, le=1, description="share of KD against endpoint cross-entropy, Eq. 3"
    )
    p_root_start: float = Field(0.5, ge=0, le=1, description="root probability at first, Eq. 9")
    p_root_end: float = Field(0.85, ge=0, le=1, description="root probability at last, Eq. 9")
    p_root_warmup: float = Field(
        0.10, ge=0, lt=1, description="share of training held at p_root_start"
    )
    p_root_cooldown: float = Field(
        0.30, ge=0, lt=1, description="share of training held at p_root_end"
    )
    first_mismatch_weight: float | None = Field(
        None, gt=0, le=1, description="weight from the first mismatch on, Eq. 11; null: off"
    )
    mismatch_decay: float | None = Field(
        None, gt=0, lt=1, description="beta: the further fall of that weight; null: none"
    )
    l1_alpha: float = Field(
        0.0,
        ge=0,
        description="share of the L1 distance to the target's distribution, for DSpark drafters; "
        "0: off",
    )
    teacher: str | None = Field(
        None,
        min_length=1,
        description="the checkpoint that rolls out, with trajectories: online; "
        "null: model.draft_checkpoint_path",
    )

    @model_validator(mode="after")
    def _consistent(self) -> StudentOptions:
        if self.p_root_warmup + self.p_root_cooldown >= 1:
            raise ValueError(
                f"dstill.student.p_root_warmup + p_root_cooldown is "
                f"{self.p_root_warmup + self.p_root_cooldown:g}; it must stay below 1"
            )
        if self.mismatch_decay is not None and self.first_mismatch_weight is None:
            raise ValueError(
                "dstill.student.mismatch_decay needs dstill.student.first_mismatch_weight"
            )
        return self


class EvaluationOptions(Section):
    """Block acceptance on a held-out cache, measured while training.

    The cache and the steps between two evaluations are SpecForge's own options:
    `data.eval_hidden_states_path` and `training.eval_interval`.
    """

    passes: list[Annotated[int, Field(ge=1)]] | None = Field(
        None, min_length=1, description="drafting passes to score, each; null: 1 and K"
    )
    best_by: int | None = Field(
        None,
        ge=1,
        description="the passes whose acceptance picks the best checkpoint; null: the most of "
        "passes in dstill_teacher, the fewest in dstill_student, dflash and dspark",
    )
    anchors_per_sample: int = Field(
        32, ge=1, description="blocks per held-out sample, evenly spread over its answer"
    )


class DstillOptions(Section):
    """Everything under `dstill:`."""

    steps: int = Field(8, ge=1, description="K, the passes of the teacher; at most block_size - 1")
    trajectories: str = Field(
        "trajectories",
        min_length=1,
        description="where the trajectory store is: a folder, a URL that fsspec knows (s3://, "
        "gs://, hf://), or one of a scheme that another package registers; online: none, the "
        "teacher rolls out blocks in the student's step",
    )
    blocks_per_group: int = Field(
        8,
        ge=1,
        description="blocks that attend at once with attention_backend: sdpa, the one whose "
        "memory this bounds",
    )
    rows_per_tile: int = Field(
        1024, ge=1, description="rows through the LM head at once: bounds the logits' memory"
    )
    teacher: TeacherOptions = TeacherOptions()
    collect: CollectOptions = CollectOptions()
    student: StudentOptions = StudentOptions()
    evaluation: EvaluationOptions = EvaluationOptions()

    @model_validator(mode="after")
    def _best_is_scored(self) -> DstillOptions:
        best, scored = self.evaluation.best_by, self.scored_passes
        if best is not None and best not in scored:
            raise ValueError(
                f"dstill.evaluation.best_by is {best}, which is not scored; give one of "
                f"dstill.evaluation.passes: {list(scored)}"
            )
        return self

    @model_validator(mode="after")
    def _teacher_needs_online(self) -> DstillOptions:
        if self.student.teacher is not None and not self.online:
            raise ValueError(
                f"{TEACHER_OPTION} needs dstill.trajectories: online; a store names its teacher"
            )
        return self

    @property
    def online(self) -> bool:
        """Whether trajectories are made in the student's step instead of read from a store."""
        return self.trajectories == ONLINE

    @property
    def scored_passes(self) -> tuple[int, ...]:
        """The numbers of passes that an evaluation in training scores, ascending."""
        return tuple(sorted(set(self.evaluation.passes or (1, self.steps))))

    def best_by(self, mode: str) -> int:
        """The number of passes that picks the best checkpoint: those that the drafter is for."""
        most, fewest = self.scored_passes[-1], self.scored_passes[0]
        return self.evaluation.best_by or (most if mode == "dstill_teacher" else fewest)

    def taught_by(self, checkpoint: str | None) -> DstillOptions:
        """With the teacher of online trajectories at ``checkpoint``, unless one is named."""
        if not self.online or self.student.teacher is not None:
            return self
        student = self.student.model_copy(update={"teacher": checkpoint})
        return self.model_copy(update={"student": student})

    def flat(self) -> dict[str, Scalar]:
        """Every option under its dotted name, `dstill.student.alpha`."""
        return flatten(self.model_dump(), "dstill.")

    def contract(self, section: str) -> dict[str, Scalar]:
        """What must stay the same when a run of that stage resumes: K and the stage's options.

        Without the teacher's path: a teacher is known by its weights, wherever they lie.
        """
        wanted = f"dstill.{section}."
        options = {
            name: value
            for name, value in self.flat().items()
            if name.startswith(wanted) and name != TEACHER_OPTION
        }
        return {"dstill.steps": self.steps, **options}


def option_keys() -> list[str]:
    """Every dotted key of the section, and the section itself."""
    return ["dstill", *dotted_keys(DstillOptions, "dstill.")]


def parse_options(section: object, *, keys: list[str] | None = None) -> DstillOptions:
    """The options of a document's `dstill:` section.

    Args:
        section: the parsed section; None stands for an empty one.
        keys: the document's valid dotted keys, to suggest from; ours alone by default.

    Raises:
        UserError: in one line, what is wrong and what is allowed.
    """
    if section is None:
        section = {}
    if not isinstance(section, Mapping):
        raise UserError(f"dstill: {section!r} is not a section of options")
    try:
        return DstillOptions.model_validate(dict(section))
    except ValidationError as error:
        raise explain(error, DstillOptions, prefix="dstill.", keys=keys or option_keys()) from None


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections under dotted names, `training.seed`; lists and empty sections stay."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
