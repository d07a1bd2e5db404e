"""The `dstill:` section of a run file: what its stages share, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError, model_validator

from specforge_dstill.errors import UserError
from specforge_dstill.option_sections import (
    CollectOptions,
    EvaluationOptions,
    Section,
    StudentOptions,
    TeacherOptions,
)
from specforge_dstill.validation import dotted_keys, explain

Scalar = bool | int | float | str | None

# `dstill.trajectories: online`: no store; the teacher rolls out blocks in the student's step.
ONLINE = "online"
TEACHER_OPTION = "dstill.student.teacher"


class DstillOptions(Section):
    """Everything under `dstill:`."""

    steps: int = Field(8, ge=1, description="K, the passes of the teacher; at most block_size - 1")
    trajectories: str = Field(
        "trajectories",
        min_length=1,
        description="where the trajectory store is: a folder, a URL that fsspec knows (s3://, "
        "gs://; hf:// to read from), or one of a scheme that another package registers; online: "
        "none, the teacher rolls out blocks in the student's step",
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
