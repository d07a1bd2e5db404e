"""A drafter's config and tensors: from a checkpoint of SpecForge, or a folder with safetensors."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from specforge.training.model_loading import load_draft_config_source
from torch import Tensor

from specforge_dstill.errors import UserError, reason
from specforge_dstill.export.layouts import trainable_config
from specforge_dstill.files import json_bytes
from specforge_dstill.modes.checkpoints import FAMILY, find_state_file, read_state
from specforge_dstill.modes.drafter_identity import recorded_identity

WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True)
class DraftFiles:
    """A trained drafter.

    Attributes:
        config: SpecForge's draft config; None from a checkpoint, which has none.
        tensors: by SpecForge's names.
        origin: where it comes from, for the provenance.
        trained: what a checkpoint records of the drafter, see :func:`recorded_identity`; None from
            a folder, which has its config.
    """

    config: Any
    tensors: Mapping[str, Tensor]
    origin: dict[str, Any] = field(default_factory=dict)
    trained: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, source: str) -> DraftFiles:
        """From a checkpoint, a run's folder or a Hugging Face folder on this machine.

        Raises:
            UserError: nothing to read there, damaged files, or another kind of drafter.
        """
        state_file = find_state_file(source)
        if state_file is not None:
            return cls._of_state(source, state_file)
        folder = Path(source.removeprefix("file://")).expanduser()
        if not folder.is_dir():
            raise UserError(f"{source}: no such checkpoint or folder")
        config = draft_config(read_config(folder), where=source)
        return cls(config, read_tensors(folder), {"resolved": str(folder.resolve())})

    @classmethod
    def _of_state(cls, source: str, state_file: Path) -> DraftFiles:
        state = read_state(state_file, "draft_state_dict", "strategy")
        mode = str(state["strategy"])
        if mode not in FAMILY:
            raise UserError(
                f"{source} was written by mode {mode}; exported are drafters of {', '.join(FAMILY)}"
            )
        origin = {
            "resolved": str(state_file.resolve().parent),
            "mode": mode,
            "step": state.get("global_step"),
        }
        return cls(None, dict(state["draft_state_dict"]), origin, recorded_identity(state))


def draft_config(content: Mapping[str, Any], *, where: str) -> Any:
    """SpecForge's draft config out of a config.json in any layout. UserError naming ``where``."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            # SpecForge reads files only.
            path = Path(folder) / CONFIG
            path.write_bytes(json_bytes(trainable_config(content)))
            return load_draft_config_source(str(path))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where}: its {CONFIG} is no drafter's: {reason(error)}") from error


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors. UserError when there are none, or damaged ones."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: holds no safetensors")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file}: cannot be read: {reason(error)}; export it again") from error
    return tensors


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json. UserError when there is none, or it is no JSON object."""
    path = folder / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder}: holds no {CONFIG}; it is no exported drafter") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: is no JSON object")
    return found
