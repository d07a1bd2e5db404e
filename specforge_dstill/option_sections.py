"""The sections below `dstill:`, one a stage: every option with its meaning and its bounds."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_FUNCTION = re.compile(r"[\w.]+:[\w.]+")


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
        "commit",
        description="keep the distributions of the committing pass, which training reads alone, or "
        "of every pass, as the paper does",
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
