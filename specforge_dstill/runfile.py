"""Run files: an ordinary SpecForge YAML with two sections of ours, `dstill:` and `modes:`.

Order, the last word wins: the document, the part of `modes:` that belongs to the mode, the dotted
overrides of the command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from specforge_dstill.errors import UserError
from specforge_dstill.mode_names import ALL_MODES, check_mode
from specforge_dstill.options import (
    TEACHER_OPTION,
    DstillOptions,
    flatten,
    option_keys,
    parse_options,
)
from specforge_dstill.overrides import override
from specforge_dstill.strict_yaml import KeyMistakeError, load_yaml
from specforge_dstill.validation import dotted_keys, explain, submodel

if TYPE_CHECKING:
    from specforge.config import Config

DEFAULT_PATH = "dstill.yaml"


@dataclass(frozen=True)
class RunFile:
    """A run file, resolved for one mode.

    Attributes:
        config: what SpecForge gets.
        options: the `dstill:` section.
        path: the file it came from.
        mode: also in `config.training.strategy`.
        explicit: the dotted keys that the file or the command line set; the rest are defaults.
    """

    config: Config
    options: DstillOptions
    path: str
    mode: str
    explicit: frozenset[str]

    @property
    def teacher(self) -> str | None:
        """The checkpoint that rolls out in this run's steps; None where none does."""
        rolls_out = self.mode == "dstill_student" and self.options.online
        return self.options.student.teacher if rolls_out else None

    @property
    def note(self) -> str | None:
        """What of the file does not count in this run, in one line."""
        start, resumed = self.config.model.draft_checkpoint_path, self.config.training.resume_from
        if resumed is None or start or "model.draft_checkpoint_path" not in self.explicit:
            return None
        if self.teacher is not None and TEACHER_OPTION not in self.explicit:
            return f"resuming from {resumed}: model.draft_checkpoint_path names the teacher only"
        return f"resuming from {resumed}: model.draft_checkpoint_path is not read"


def load_run(
    path: str | None = None, overrides: Sequence[str] = (), mode: str | None = None
) -> RunFile:
    """Read a run file for a mode.

    Args:
        path: the file; `dstill.yaml` in the current folder by default.
        overrides: `section.field=value`, `dstill.*` included.
        mode: the training mode; by default the file's `training.strategy`.

    Raises:
        UserError: in one line, for anything that is wrong with the file or the overrides.
    """
    path = DEFAULT_PATH if path is None else str(path)
    if mode is not None:
        check_mode(mode)
    document = read_document(path)
    keys = _valid_keys()
    over: dict[str, Any] = {}
    for item in overrides:
        over = merge(over, override(item, keys))
    try:
        return _resolve(document, over, keys, mode, path)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


_RUN_FILE = "name one with --config, or write one with: specforge-dstill init"
_SECTIONS = "sections such as model:, data: and training:"


def read_document(
    path: str, *, kind: str = "run file", elsewhere: str = _RUN_FILE, holds: str = _SECTIONS
) -> dict[str, Any]:
    """The file as a dict. UserError with the line number when it is malformed.

    Args:
        kind: what the file is, for errors.
        elsewhere: what to do where there is none.
        holds: what is in such a file.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"no {kind} {path}; {elsewhere}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the {kind} {path}: {error}") from None
    try:
        document = json.loads(text) if path.endswith(".json") else load_yaml(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        what = "" if isinstance(error, KeyMistakeError) else "not YAML: "
        raise UserError(f"{path}{line}: {what}{error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or not document:
        raise UserError(f"{path}: a {kind} holds {holds}")
    return document


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`: sections merge, the rest is replaced; neither changes."""
    merged = dict(base)
    for name, value in over.items():
        old = merged.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[name] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _valid_keys() -> list[str]:
    from specforge.config import Config

    return [*option_keys(), *dotted_keys(Config), "modes"]


def _resolve(
    document: dict[str, Any],
    over: dict[str, Any],
    keys: list[str],
    mode: str | None,
    path: str,
) -> RunFile:
    from specforge.config import Config, migrate_legacy_config

    base = {name: value for name, value in document.items() if name != "modes"}
    parts = _mode_parts(document.get("modes"))
    mode = mode or _mode_of(base)
    merged = merge(merge(base, parts.get(mode) or {}), over)
    explicit = frozenset(flatten(merged))
    if "run_id" not in explicit:
        # Stages share an output folder; their checkpoints must not.
        merged["run_id"] = mode
    _check_sections(merged, Config)
    start = (merged.get("model") or {}).get("draft_checkpoint_path")
    if mode != "dstill_collect":
        merged = _resume_before_start(merged, over)
    merged["training"] = {**(merged.get("training") or {}), "strategy": mode}
    options = parse_options(merged.pop("dstill", None), keys=keys)
    if mode == "dstill_student" and isinstance(start, str):
        # Now, because a run that resumes no longer names what it started from.
        options = options.taught_by(start)
    try:
        config = Config.model_validate(migrate_legacy_config(merged))
    except ValidationError as error:
        raise explain(error, Config, keys=keys) from None
    except ValueError as error:
        raise UserError(str(error)) from None
    return RunFile(config=config, options=options, path=path, mode=mode, explicit=explicit)


def _resume_before_start(merged: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Without `model.draft_checkpoint_path` where `training.resume_from` is set.

    A resumed run has its weights; SpecForge refuses both together. A stage's part of the run file
    names what it starts from, and one word on the command line must be enough to go on with it.
    """
    resumed = (merged.get("training") or {}).get("resume_from")
    if not resumed or "draft_checkpoint_path" in (over.get("model") or {}):
        return merged
    return merge(merged, {"model": {"draft_checkpoint_path": None}})


def _mode_parts(section: object) -> dict[str, dict[str, Any]]:
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise UserError(f"modes: holds one part for each mode ({', '.join(ALL_MODES)})")
    for name, part in section.items():
        check_mode(str(name), where="modes")
        if part is not None and not isinstance(part, dict):
            raise UserError(f"modes.{name}: {part!r} is not a section of options")
    return section


def _check_sections(document: Mapping[str, Any], config: type[Config]) -> None:
    for name, field in config.model_fields.items():
        value = document.get(name)
        if submodel(field.annotation) and not isinstance(value, Mapping | None):
            raise UserError(f"{name}: {value!r} is not a section of options")


def _mode_of(base: Mapping[str, Any]) -> str:
    training = base.get("training")
    strategy = training.get("strategy") if isinstance(training, Mapping) else None
    if strategy is None:
        raise UserError(f"no mode: give --mode with one of {', '.join(ALL_MODES)}")
    check_mode(str(strategy), where="training.strategy")
    return str(strategy)
