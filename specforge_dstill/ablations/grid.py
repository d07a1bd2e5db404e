"""The grid: which variants, on which seeds, measured how. One YAML file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from specforge_dstill.errors import UserError
from specforge_dstill.option_sections import Section
from specforge_dstill.options import ONLINE, Scalar
from specforge_dstill.runfile import DEFAULT_PATH, read_document
from specforge_dstill.validation import dotted_keys, explain

Mode = Literal["dflash", "dspark", "dstill_teacher", "dstill_student"]
#: What the grid itself sets for each training; ``dstill.trajectories`` may be "online".
_TAKEN = {
    "output_dir": "each training has its own folder",
    "run_id": "it is the variant's name",
    "training.seed": "give seeds:",
    "training.resume_from": "the same command goes on by itself",
    "model.draft_checkpoint_path": "give from: a variant, or name it in the run file",
    "dstill.student.teacher": "it is the variant that from: names",
    "dstill.collect.after_training": "records are collected where a student needs them",
    "dstill.trajectories": f"only {ONLINE} can be given: records lie in the output folder",
}
#: Sections of ours that a mode's result does not depend on.
UNREAD = {
    "dflash": ("dstill.teacher.", "dstill.student.", "dstill.collect."),
    "dspark": ("dstill.teacher.", "dstill.student.", "dstill.collect."),
    "dstill_teacher": ("dstill.student.", "dstill.collect."),
    "dstill_student": ("dstill.teacher.",),
    "dstill_collect": ("dstill.teacher.", "dstill.student.", "dstill.evaluation."),
}
#: Variants and data sets name folders and drafters.
Name = Annotated[str, StringConstraints(pattern=r"^\w[\w.-]*$", max_length=100)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**32)]


#: Folders beside those of the variants.
RESULTS, RECORDS = "results", "records"


class Variant(Section):
    """One training.

    In the file its options stand beside ``mode``, ``from`` and ``passes``, each under its dotted
    name: ``{from: teacher, dstill.student.alpha: 0}``.
    """

    model_config = ConfigDict(populate_by_name=True)

    mode: Mode = "dstill_student"
    start: str | None = Field(None, alias="from", description="the variant it starts from")
    passes: list[Annotated[int, Field(ge=1)]] | None = Field(
        None, min_length=1, description="passes it is measured at; null: 1, and K if no student"
    )
    options: dict[str, Scalar] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _options_are_dotted(cls, content: Any) -> Any:
        if isinstance(content, Variant):
            return content
        if not isinstance(content, Mapping):
            raise ValueError(f"{content!r} is no variant; give it mode: or from:, or remove it")
        options = {k: v for k, v in content.items() if "." in str(k) or k in _TAKEN}
        for name, value in content.items():
            if isinstance(value, Mapping):
                first = next(iter(value), "…")
                raise ValueError(f"options have their dotted names here, such as {name}.{first}:")
            if name in options and not isinstance(value, Scalar):
                raise ValueError(
                    f"{name}: {value!r} is no single value; name lists in the run file"
                )
            if name in _TAKEN and (name, value) != ("dstill.trajectories", ONLINE):
                raise ValueError(f"{name} cannot be set in a variant: {_TAKEN[name]}")
        return {**{k: v for k, v in content.items() if k not in options}, "options": options}

    @model_validator(mode="after")
    def _options_are_read(self) -> Variant:
        for name in self.options:
            if name.startswith(UNREAD[self.mode]):
                raise ValueError(f"{name} changes nothing in a training of mode {self.mode}")
        return self

    @property
    def online(self) -> bool:
        """Whether its records are made in its own steps."""
        return self.options.get("dstill.trajectories") == ONLINE


class Evaluation(Section):
    """What ``evaluate --replay`` is told."""

    prompts: dict[Name, str | None] = Field(
        min_length=1, description="data sets: name and source; null for a benchmark by its name"
    )
    limit: int | None = Field(None, ge=1, description="the first N prompts of each")
    max_new_tokens: int = Field(2048, ge=1)
    batch_size: int = Field(16, ge=1)
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="of target, features and drafters; null: float32, which is exact"
    )


class Grid(Section):
    """The whole file."""

    run: str = Field(DEFAULT_PATH, description="the run file that all variants share")
    output: str = Field("ablations", min_length=1, description="the folder of everything made")
    seeds: list[Seed] = Field(default=[0], min_length=1, description="of training, each for all")
    jobs: int = Field(1, ge=1, description="trainings at a time")
    ranks: int = Field(1, ge=1, description="processes (GPUs) of each")
    launcher: str | None = Field(
        None, description="what starts a training, before -m specforge.train; null: torchrun here"
    )
    reference: str = Field("student", description="the variant that others are set against")
    evaluate: Evaluation
    variants: dict[Name, Variant] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Grid:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {self.seeds} names one twice")
        for name, variant in self.variants.items():
            if name == RESULTS or name.startswith(f"{RECORDS}-"):
                raise ValueError(
                    f"variants.{name}: is the name of a folder of ours; choose another"
                )
            self._check(name, variant)
        if self.reference not in self.variants:
            raise ValueError(
                f"reference: there is no variant {self.reference} to set the others against; name "
                f"another one, such as reference: {next(iter(self.variants))}"
            )
        passes = self.variants[self.reference].passes
        if passes is not None and 1 not in passes:
            raise ValueError(
                f"reference: others are set against one pass of {self.reference}; add 1 to its "
                "passes:"
            )
        return self

    @field_validator("launcher")
    @classmethod
    def _launcher_has_words(cls, launcher: str | None) -> str | None:
        try:
            if launcher is not None and not shlex.split(launcher):
                raise ValueError("it is empty; null is torchrun here")
        except ValueError as error:
            raise ValueError(f"launcher: {launcher!r} is no command: {error}") from None
        return launcher

    def _check(self, name: str, variant: Variant) -> None:
        before, at = [name], variant
        while at.start is not None:
            if at.start not in self.variants:
                raise ValueError(f"variants.{before[-1]}.from: there is no variant {at.start}")
            if at.start in before:
                raise ValueError(f"variants.{name}.from: {' <- '.join((*before, at.start))}")
            before.append(at.start)
            at = self.variants[at.start]
        if variant.mode == "dstill_student" and variant.start is None:
            raise ValueError(
                f"variants.{name}.from: name the variant whose records it learns, such as teacher"
            )

    def ordered(self) -> Iterator[tuple[str, Variant]]:
        """Variants, each after the one that it starts from."""
        seen: dict[str, Variant] = {}

        def visit(name: str) -> None:
            variant = self.variants[name]
            if variant.start is not None and variant.start not in seen:
                visit(variant.start)
            seen.setdefault(name, variant)

        for name in self.variants:
            visit(name)
        yield from seen.items()


def read_grid(path: Path) -> Grid:
    """The grid of a file. Raises: ``UserError`` in one line for anything wrong with it."""
    document = read_document(
        str(path),
        kind="grid file",
        elsewhere="specforge-dstill ablate --help shows one",
        holds="run:, seeds:, evaluate: and variants:",
    )
    try:
        return Grid.model_validate(document)
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, Grid, keys=_keys(document))}") from None


def _keys(document: Mapping[str, Any]) -> list[str]:
    """Every valid key of this very file."""
    variants = document.get("variants")
    names = variants if isinstance(variants, Mapping) else {}
    own = [f"variants.{name}.{key}" for name in names for key in ("mode", "from", "passes")]
    return [*dotted_keys(Grid), *own]
