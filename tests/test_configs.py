"""The run files under configs/ resolve, and their drafters are the paper's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from specforge.modeling.auto import AutoDraftModel
from specforge.modeling.draft.dflash import DFlashDraftModel, build_target_layer_ids
from torch import nn

from specforge_dstill.data.draft_config import backbone_of, resolve_draft
from specforge_dstill.export.draft_facts import DraftFacts
from specforge_dstill.mode_names import DSTILL_MODES
from specforge_dstill.modes.checks import check_options
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.options import DstillOptions
from specforge_dstill.runfile import load_run

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.parent.name for path in ROOT.glob("configs/*/dstill.yaml"))
# Millions of trained parameters, and the target layers that are read: the paper's Table 10.
PAPER: dict[str, tuple[int, list[int]]] = {
    "gpt-oss-120b": (785, [1, 9, 17, 25, 33]),
    "gemma-4-31b": (1536, [1, 12, 23, 35, 46, 57]),
    "gemma-4-26b-a4b": (430, [1, 6, 11, 17, 22, 27]),
    "nemotron-3.5-30b-a3b": (481, [1, 11, 20, 30, 39, 49]),
}
QWEN = ["qwen3-4b", "qwen3-8b"]
#: Table 11's, of a target that the paper does not name.
DSPARK = "gpt-oss-120b-dspark"
#: Where the paper names a number of epochs: of Stage I, and of DFlash's first column in Table 5.
EPOCHS = {"dstill_teacher": "gpt-oss-120b", "dflash": "gemma-4-31b"}


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run files name their drafters as seen from there."""
    monkeypatch.chdir(ROOT)


def draft_config_of(name: str) -> Any:
    return resolve_draft(load_run(f"configs/{name}/dstill.yaml", (), "dflash").config)


def baseline_of(name: str) -> str:
    return "dspark" if name == DSPARK else "dflash"


def draft_of(name: str) -> DFlashDraftModel:
    """Of shapes alone."""
    with torch.device("meta"):
        draft = AutoDraftModel.from_config(draft_config_of(name))
    assert isinstance(draft, DFlashDraftModel)  # DSpark's, too
    return draft


def parameters_of(name: str) -> int:
    return sum(parameter.numel() for parameter in draft_of(name).parameters())


def test_every_target_of_the_paper_has_its_folder() -> None:
    assert sorted([*PAPER, *QWEN, DSPARK]) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", [*DSTILL_MODES, "baseline"])
def test_every_stage_of_a_run_file_resolves(name: str, mode: str) -> None:
    mode = baseline_of(name) if mode == "baseline" else mode
    run = load_run(f"configs/{name}/dstill.yaml", (), mode)
    draft = resolve_draft(run.config)
    assert backbone_of(draft) == baseline_of(name)
    if mode in DSTILL_MODES:
        check_options(run.config, run.options, mode=mode, draft_config=draft)
    if mode in ("dstill_collect", "dstill_student"):
        assert run.config.model.draft_checkpoint_path == (
            f"{load_run(run.path, (), 'dstill_teacher').config.output_dir}/dstill_teacher-latest"
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_are_the_papers(name: str) -> None:
    student = load_run(f"configs/{name}/dstill.yaml", (), "dstill_student")
    teacher = load_run(f"configs/{name}/dstill.yaml", (), "dstill_teacher")
    assert student.options == DstillOptions(
        trajectories=student.options.trajectories,
        collect={"anchors_per_sample": 512},
    )
    for run, epochs in ((teacher, 10), (student, 3)):
        training = run.config.training
        assert (training.warmup_ratio, training.max_grad_norm) == (0.03, 1.0)
        assert training.num_epochs == epochs
    if name not in QWEN:
        assert student.config.data.max_length == 24576


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", EPOCHS)
def test_epochs_are_called_the_papers_where_it_names_them(name: str, mode: str) -> None:
    """Elsewhere they are a choice, though the same one."""
    mode = baseline_of(name) if mode == "dflash" else mode
    text = (ROOT / "configs" / name / "dstill.yaml").read_text(encoding="utf-8")
    (mark,) = re.findall(rf"^  {mode}:.*\n(?:    #.*\n)*    training: .*}} +# ([PC])\b", text, re.M)
    assert (mark == "P") == (EPOCHS.get(mode) == name)


def test_the_dspark_drafter_is_the_dflash_one_with_its_heads() -> None:
    """Table 11 sets distillation against none, of one drafter; its heads the paper leaves open."""
    config, plain = (draft_config_of(name).to_dict() for name in (DSPARK, "gpt-oss-120b"))
    heads = set(config["dflash_config"]) - set(plain["dflash_config"])
    assert heads >= {"markov_rank", "markov_head_type", "enable_confidence_head"}
    assert {key for key in plain if config[key] != plain[key]} == {"architectures", "dflash_config"}
    # W1 and W2 of rank 256, and the confidence head over state and embedding.
    added = parameters_of(DSPARK) - parameters_of("gpt-oss-120b")
    assert added == 2 * 201088 * 256 + 2880 + 256 + 1
    assert DraftFacts.of(draft_config_of(DSPARK)).drafted == 16


@pytest.mark.parametrize("name", PAPER)
def test_drafters_are_of_the_papers_size(name: str) -> None:
    millions, layers = PAPER[name]
    assert draft_of(name).target_layer_ids == layers
    assert max(layers) < draft_config_of(name).num_target_layers
    assert parameters_of(name) / 1e6 == pytest.approx(millions, abs=0.5)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_tells_the_number_of_parameters(name: str) -> None:
    table = (ROOT / "configs/README.md").read_text(encoding="utf-8")
    (told,) = re.findall(rf"^\| `{name}/` \|.*\| ([\d.]+) \| [^|]+ \|$", table, flags=re.MULTILINE)
    assert float(told) == round(parameters_of(name) / 1e6, 1)


@pytest.mark.parametrize("name", QWEN)
def test_qwens_layers_are_specforges(name: str) -> None:
    assert draft_of(name).target_layer_ids == build_target_layer_ids(36, 5)


def test_qwen3_8b_by_hand() -> None:
    """Per layer: attention 2*4096*4096 + 2*4096*1024, MLP 3*4096*12288, norms; plus the fc."""
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128
    assert parameters_of("qwen3-8b") == 5 * layer + 5 * 4096 * 4096 + 2 * 4096


@pytest.mark.parametrize("name", NAMES)
def test_blocks_are_read_both_ways_in_training_decoding_and_export(name: str) -> None:
    """On sliding layers, too, where SpecForge and the engines are causal unless told."""
    draft = draft_of(name)
    drafter = BlockDrafter(
        draft,
        lm_head=nn.Linear(1, 1, device="meta"),
        embed_tokens=nn.Embedding(1, 1, device="meta"),
        mask_token_id=draft.mask_token_id,
    )
    masks = drafter.masks(torch.tensor([[3000]]), 3000)
    facts = DraftFacts.of(draft.config)
    assert facts.is_causal is False
    assert masks.keys() == set(facts.layer_types)
    for kind, layout in masks.items():
        assert not layout.causal
        assert layout.window == (2048 if kind == "sliding_attention" else None)
    assert facts.needs_is_causal == ("sliding_attention" in facts.layer_types)
