"""The run files under configs/ load, and their drafters can be built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from specforge.modeling.draft.dflash import DFlashDraftModel, build_target_layer_ids

from specforge_dstill.mode_names import DSTILL_MODES
from specforge_dstill.modes.assembly import resolve_draft
from specforge_dstill.modes.checks import check_options
from specforge_dstill.runfile import load_run

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in ROOT.glob("configs/*/dstill.yaml"))


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run files name their drafters as seen from there."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("mode", [*DSTILL_MODES, "dflash"])
def test_every_stage_of_a_run_file_resolves(folder: Path, mode: str) -> None:
    run = load_run(str(folder / "dstill.yaml"), (), mode)
    draft = resolve_draft(run.config)
    if mode != "dflash":
        check_options(run.config, run.options, mode=mode, draft_config=draft)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_drafter_can_be_built(folder: Path) -> None:
    draft_config = resolve_draft(load_run(str(folder / "dstill.yaml"), (), "dflash").config)
    with torch.device("meta"):
        draft = DFlashDraftModel(draft_config)
    assert sum(p.numel() for p in draft.parameters()) > 1e8


def test_qwen3_8b_by_hand() -> None:
    """Per layer: attention 2*4096*4096 + 2*4096*1024, MLP 3*4096*12288, norms; plus the fc."""
    draft_config = resolve_draft(load_run("configs/qwen3-8b/dstill.yaml", (), "dflash").config)
    with torch.device("meta"):
        draft = DFlashDraftModel(draft_config)
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128
    assert sum(p.numel() for p in draft.parameters()) == 5 * layer + 5 * 4096 * 4096 + 2 * 4096
    assert draft.target_layer_ids == build_target_layer_ids(36, 5)
