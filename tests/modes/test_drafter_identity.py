"""A drafter goes on as what it was trained as, wherever its weights lie."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from specforge_dstill.errors import UserError
from specforge_dstill.modes.checkpoints import STATE_FILE, load_draft_weights
from specforge_dstill.runfile import load_run
from tests import tiny
from tests.modes.running import write_run
from tests.modes.support import make_draft


def saved(folder: Path, strategy: str, prefix: str, **changes: Any) -> str:
    """A run's checkpoint of a random drafter, with what its mode writes beside the weights."""
    draft = make_draft()
    told = {
        "target_layer_ids": tuple(draft.target_layer_ids),
        "mask_token_id": draft.mask_token_id,
        "block_size": tiny.BLOCK_SIZE,
        **changes,
    }
    state = {"strategy": strategy, "draft_state_dict": draft.state_dict()}
    folder.mkdir()
    torch.save(state | {f"{prefix}_{k}": v for k, v in told.items()}, folder / STATE_FILE)
    return str(folder)


def load(source: str, folder: Path) -> None:
    write_run(folder, folder)
    model = load_run(str(folder / "dstill.yaml"), [], "dflash").config.model
    draft = make_draft()
    load_draft_weights(draft, source, draft.config, model)


MODES = [("dflash", "dflash"), ("dstill_teacher", "dstill"), ("dstill_student", "dstill")]


@pytest.mark.parametrize(("strategy", "prefix"), MODES)
def test_other_target_layers_are_refused(strategy: str, prefix: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "other", strategy, prefix, target_layer_ids=(0, 3))
    with pytest.raises(UserError, match=r"was trained on target layers \[0, 3\]"):
        load(source, tmp_path)


@pytest.mark.parametrize(("strategy", "prefix"), MODES)
def test_another_mask_token_is_told(strategy: str, prefix: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "other", strategy, prefix, mask_token_id=9)
    with pytest.warns(UserWarning, match="was trained with mask_token_id 9"):
        load(source, tmp_path)


@pytest.mark.parametrize(("strategy", "prefix"), MODES)
def test_the_same_drafter_is_loaded_without_a_word(
    strategy: str, prefix: str, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(saved(tmp_path / "same", strategy, prefix), tmp_path)


def test_another_block_size_is_told_where_it_is_known(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="was trained with block_size 4"):
        load(saved(tmp_path / "other", "dflash", "dflash", block_size=4), tmp_path)
