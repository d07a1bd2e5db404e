"""Trained-looking drafters as SpecForge's checkpoints, with a run file that names their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from specforge.modeling.auto import AutoDraftModel
from specforge.training.model_loading import load_draft_config_source

from specforge_dstill import cli
from tests import tiny

SLIDING, FULL = "sliding_attention", "full_attention"
#: Of sliding layers, no smaller than a block.
WINDOW = 12
DSPARK = {
    "projector_type": "dspark",
    "markov_rank": 4,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


def dspark_config() -> dict[str, Any]:
    """The tiny drafter's with DSpark's heads."""
    config = tiny.draft_config()
    method = {**config["dflash_config"], **DSPARK}
    return {**config, "architectures": ["DSparkDraftModel"], "dflash_config": method}


def save_checkpoint(
    folder: Path,
    config: dict[str, Any],
    *,
    mode: str = "dstill_student",
    dtype: torch.dtype = torch.float32,
) -> dict[str, torch.Tensor]:
    """``folder/draft.json`` and ``folder/student-step7``, as SpecForge writes it; its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    path = tiny.write_json(folder / "draft.json", config)
    torch.manual_seed(1)
    draft = AutoDraftModel.from_config(load_draft_config_source(str(path)), torch_dtype=dtype)
    tensors = dict(draft.state_dict())
    save_state(folder, tensors, mode=mode)
    return tensors


def save_state(
    folder: Path, tensors: dict[str, torch.Tensor], *, mode: str, **recorded: Any
) -> None:
    """``folder/student-step7`` of these tensors, and what else the mode wrote beside them."""
    (folder / "student-step7").mkdir(exist_ok=True)
    state = {"draft_state_dict": tensors, "strategy": mode, "global_step": 7}
    torch.save(state | recorded, folder / "student-step7" / "training_state.pt")


def run_file(folder: Path, inputs: Path) -> Path:
    """One for ``folder/draft.json`` beside the tiny target and its cache."""
    content = {
        "model": {
            "target_model_path": str(inputs / "target"),
            "draft_model_config": str(folder / "draft.json"),
            "torch_dtype": "float32",
        },
        "data": {"hidden_states_path": str(inputs / "cache"), "max_length": 64},
    }
    # JSON is YAML.
    return tiny.write_json(folder / "dstill.yaml", content)


def exported(folder: Path, inputs: Path, config: dict[str, Any], *words: str) -> Path:
    """``folder/out``, exported from a new checkpoint of ``config``; ``words`` go to the command."""
    save_checkpoint(folder, config)
    arguments = [
        f"--config={run_file(folder, inputs)}",
        f"--checkpoint={folder / 'student-step7'}",
        f"--output-dir={folder / 'out'}",
    ]
    assert cli.main(["export", *arguments, *words]) == 0
    return folder / "out"
