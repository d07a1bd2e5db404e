"""What a run names, before it starts: its inputs are there and fit, its output undoes nothing."""

from __future__ import annotations

import os
import re
import zipfile
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
    if config.training.resume_from:
        _check_resume(config.training.resume_from)


def _check_resume(source: str) -> None:
    """Refuse a checkpoint to go on from that is not there, not one, or not whole.

    SpecForge finds that when the ranks are joined, where it is a traceback of each of them.
    """
    if not Path(source.removeprefix("file://")).expanduser().exists():
        raise UserError(f"training.resume_from: {source} does not exist")
    from specforge.training.checkpoint import CheckpointManager

    try:
        state = Path(CheckpointManager.resolve_resume_dir(source), _STATE_FILE)
    except (OSError, ValueError) as error:
        raise UserError(f"training.resume_from: {error}") from error
    if not zipfile.is_zipfile(state):  # as torch.save writes it, with its directory at the end
        raise UserError(
            f"training.resume_from: {state} cannot be read, it may be cut short; take an earlier "
            "checkpoint"
        )


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
    check_unused(config)


def check_unused(config: Config) -> None:
    """UserError for an output folder, if it is there, that holds checkpoints of this run."""
    folder = Path(config.output_dir)
    if not folder.is_dir():
        return
    done = _checkpoints(folder, config.run_id)
    if done and not config.training.resume_from:
        last, latest = done[max(done)], folder / f"{config.run_id}-latest"
        raise UserError(
            f"output_dir: {folder} holds checkpoints of this run already ({last.name}), which a "
            f"new start would delete; go on with training.resume_from="
            f"{latest if latest.exists() else last}, or choose another output_dir or run_id"
        )


def _checkpoints(folder: Path, run_id: str) -> dict[int, Path]:
    """The checkpoints of a run, by step."""
    form = re.compile(rf"{re.escape(run_id)}-step(\d+)")
    named = ((form.fullmatch(path.name), path) for path in folder.iterdir())
    # A folder without the state is what is left of a save that was cut off.
    return {int(name[1]): path for name, path in named if name and (path / _STATE_FILE).exists()}
