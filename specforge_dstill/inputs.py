"""What a run names, before it starts: its inputs are there and fit, its output undoes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from specforge_dstill.errors import UserError
from specforge_dstill.files import make_folder
from specforge_dstill.mode_names import DSTILL_MODES
from specforge_dstill.options import TEACHER_OPTION

if TYPE_CHECKING:
    from specforge.config import Config

_DRAFTERS = ("model.draft_checkpoint_path", TEACHER_OPTION)
_MODELS = ("model.target_model_path", *_DRAFTERS)
_OF_A_TEACHER = ("dstill_collect", "dstill_student")
_FEATURE_SUFFIXES = (".ckpt", ".ckpt.gz")
#: SpecForge's, in a checkpoint's folder; written as a whole.
_STATE_FILE = "training_state.pt"


def check_inputs(config: Config, *, teacher: str | None = None) -> None:
    """UserError for a cache, checkpoint or config that is not there, or that cannot be.

    And for a cache of ours that a mode of SpecForge's own would misread.

    Args:
        teacher: ``dstill.student.teacher`` where the run needs one.
    """
    caches = _existing_caches(config)
    _check_named(config, teacher)
    _check_draft(config)
    if config.training.strategy not in DSTILL_MODES:
        for folder, first in caches.items():
            _check_for_specforge(config, folder, first)


def _existing_caches(config: Config) -> dict[Path, Path]:
    """The feature caches that the run names, each with one of its files."""
    found = {}
    for key in ("hidden_states_path", "eval_hidden_states_path"):
        folder = getattr(config.data, key)
        if not folder:
            continue
        if not Path(folder).is_dir():
            raise UserError(
                f"data.{key}: no folder {folder} (paths count from {Path.cwd()}); make it with: "
                "specforge-dstill capture"
            )
        first = _first_features(folder)
        if first is None:
            raise UserError(
                f"data.{key}: {folder} holds no feature file (*.ckpt); make them with: "
                "specforge-dstill capture"
            )
        found[Path(folder)] = first
    return found


def _check_named(config: Config, teacher: str | None) -> None:
    """Refuse a target, draft config or checkpoint that is not there."""
    from specforge_dstill.data.targets import must_be_path

    named = {
        "model.target_model_path": config.model.target_model_path,
        "model.draft_model_config": config.model.draft_model_config,
        "model.draft_checkpoint_path": config.model.draft_checkpoint_path,
        TEACHER_OPTION: teacher,
    }
    for key, value in named.items():
        # Models on the Hub have an owner; asking for another one takes minutes of tries.
        path = value and (must_be_path(value) or (key in _MODELS and "/" not in value))
        if value and path and not Path(value).expanduser().exists():
            teacher_first = key in _DRAFTERS and config.training.strategy in _OF_A_TEACHER
            way_out = "; train the teacher first: --mode dstill_teacher" if teacher_first else ""
            raise UserError(
                f"{key}: {value} does not exist (paths count from {Path.cwd()}){way_out}"
            )
    resumed = config.training.resume_from
    if resumed and not Path(resumed.removeprefix("file://")).expanduser().exists():
        raise UserError(f"training.resume_from: {resumed} does not exist")


def _check_draft(config: Config) -> None:
    """Refuse a draft config file that no drafter of ours can have, or none of this target."""
    from specforge_dstill.data.draft_file import BACKBONES, check_draft_file
    from specforge_dstill.data.targets import load_config

    if config.training.strategy not in (*DSTILL_MODES, *BACKBONES.values()):
        return
    model, target = config.model, None
    if model.target_model_path and Path(model.target_model_path).is_dir():
        target = load_config(model.target_model_path, trust_remote_code=model.trust_remote_code)
    check_draft_file(model, target)


def _check_for_specforge(config: Config, folder: Path, first: Path) -> None:
    """Refuse a cache of ours that a mode of SpecForge's own would misread, or fail on later."""
    from specforge_dstill.data.cache_check import check_layers, refuse_float8
    from specforge_dstill.data.draft_config import resolve_draft, target_layers
    from specforge_dstill.data.draft_file import BACKBONES
    from specforge_dstill.data.manifest import CacheManifest

    refuse_float8(first, config.training.strategy)
    manifest = CacheManifest.read(folder)
    if manifest is not None and config.training.strategy in BACKBONES.values():
        check_layers(folder, manifest, target_layers(resolve_draft(config)))


def _first_features(folder: str) -> Path | None:
    """Some feature file of a folder."""
    files = (
        Path(home, name)
        for home, _, names in os.walk(folder)
        for name in names
        if name.endswith(_FEATURE_SUFFIXES)
    )
    return next(files, None)


def check_outputs(config: Config) -> None:
    """UserError for an output folder that cannot be made, or in which this run would undo another.

    SpecForge deletes a run's checkpoints of later steps when it saves an earlier one. That is
    meant for going on from a checkpoint, not for typing a finished command again.
    """
    folder = Path(config.output_dir)
    make_folder(folder)
    if not os.access(folder, os.W_OK):
        raise UserError(f"output_dir: {folder} cannot be written")
    # A folder without it is what is left of a save that was cut off.
    done = sorted(folder.glob(f"{config.run_id}-step*/{_STATE_FILE}"))
    if done and not config.training.resume_from:
        last, latest = done[-1].parent, folder / f"{config.run_id}-latest"
        raise UserError(
            f"output_dir: {folder} holds checkpoints of this run already ({last.name}), which a "
            f"new start would delete; go on with training.resume_from="
            f"{latest if latest.exists() else last}, or choose another output_dir or run_id"
        )
