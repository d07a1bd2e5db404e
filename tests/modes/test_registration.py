"""The three modes against SpecForge's own contracts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from specforge.algorithms.builtin import builtin_algorithm_registry
from specforge.algorithms.common.providers import STEP_OPTIONS_CONTRACT_KEY
from specforge.application import resolve_offline_capture, resolve_run

from specforge_dstill.data.draft_config import backbone_of_run
from specforge_dstill.mode_names import DSTILL_MODES
from specforge_dstill.modes import registry
from specforge_dstill.modes.feature_source import collator, reader_for, relative_id
from specforge_dstill.options import DstillOptions, parse_options
from specforge_dstill.runfile import load_run
from tests import tiny
from tests.modes.conftest import Stages
from tests.modes.running import STREAMING, write_run
from tests.modes.support import make_sample


def config_for(folder: Path, inputs: Path, mode: str, *words: str, **changes: Any) -> Any:
    write_run(folder, inputs, **changes)
    return load_run(str(folder / "dstill.yaml"), words, mode).config


def streaming_config(folder: Path, inputs: Path, mode: str) -> Any:
    from specforge.config import Config

    config = config_for(folder, inputs, mode)
    raw = config.model_dump()
    raw["data"] |= {"hidden_states_path": "", "prompts_path": "prompts.jsonl"}
    raw["deployment"] |= STREAMING
    raw["training"]["role"] = "auto"
    return Config.model_validate(raw)


def test_specforges_modes_stay_and_three_join() -> None:
    catalogue = registry(DstillOptions())
    builtin = builtin_algorithm_registry()
    assert set(catalogue.names) == {*builtin.names, *DSTILL_MODES}
    for name in builtin.names:
        assert catalogue.resolve(name).spec == builtin.resolve(name).spec


@pytest.mark.parametrize("mode", DSTILL_MODES)
def test_offline_runs_resolve(mode: str, tmp_path: Path, tiny_inputs: Path) -> None:
    config = config_for(tmp_path, tiny_inputs, mode)
    resolved = resolve_run(config, registry(DstillOptions()))
    assert resolved.algorithm.name == mode
    assert resolved.algorithm.providers.algorithm_name == mode


@pytest.mark.parametrize("trajectories", ["traj", "online"])
@pytest.mark.parametrize("mode", DSTILL_MODES)
def test_what_needs_no_store_streams(
    mode: str, trajectories: str, tmp_path: Path, tiny_inputs: Path
) -> None:
    """The teacher, and a student whose teacher rolls out in its steps."""
    config = streaming_config(tmp_path, tiny_inputs, mode)
    catalogue = registry(DstillOptions(trajectories=trajectories))
    if (mode, trajectories) in (
        ("dstill_teacher", "traj"),
        ("dstill_teacher", "online"),
        ("dstill_student", "online"),
    ):
        algorithm = resolve_run(config, catalogue).algorithm
        assert algorithm.name == mode
        ours, theirs = (
            found.providers.server_streaming_for("text")
            for found in (algorithm, catalogue.resolve("dflash"))
        )
        assert replace(ours, build_collator=theirs.build_collator) == theirs
        contracts = (
            found.spec.feature_contract("streaming", "text")
            for found in (algorithm, catalogue.resolve("dflash"))
        )
        assert next(contracts) == next(contracts)
        return
    with pytest.raises(ValueError, match=f"{mode}.* has no streaming feature contract"):
        resolve_run(config, catalogue)


@pytest.mark.parametrize("mode", DSTILL_MODES)
@pytest.mark.parametrize("backbone", ["dflash", "dspark"])
def test_capture_reads_the_same_as_for_specforges_own_mode(
    mode: str, backbone: str, tmp_path: Path, tiny_inputs: Path
) -> None:
    draft = tiny.draft_config(head="gated" if backbone == "dspark" else None)
    word = f"model.draft_model_config={tiny.write_json(tmp_path / 'draft.json', draft)}"
    ours, theirs = (
        resolve_offline_capture(
            config_for(tmp_path, tiny_inputs, name, word),
            registry=registry(DstillOptions(), backbone=backbone),
        )
        for name in (mode, backbone)
    )
    assert backbone_of_run(config_for(tmp_path, tiny_inputs, mode, word)) == backbone
    assert ours.capture_layers == theirs.capture_layers == (1, 2)
    assert ours.layout == theirs.layout


@pytest.mark.parametrize("mode", ["dstill_teacher", "dstill_student"])
def test_a_checkpoint_records_the_options_of_its_stage(stages: Stages, mode: str) -> None:
    short = mode.removeprefix("dstill_")
    folder = stages.folder / "out" / short / f"{mode}-latest"
    state = torch.load(folder / "training_state.pt", weights_only=True)
    recorded = dict(state[STEP_OPTIONS_CONTRACT_KEY])
    expected = parse_options({"steps": 3}).contract(short)
    assert expected.items() <= recorded.items()
    assert {"seed", "num_anchors"} == recorded.keys() - expected.keys()
    assert state["dstill_block_size"] == 8
    assert state["dstill_mask_token_id"] == 3
    assert tuple(state["dstill_target_layer_ids"]) == (1, 2)
    assert ("dstill_store_digest" in state) == (mode == "dstill_student")
    assert state["strategy"] == mode


def test_samples_are_named_by_their_path_in_the_cache(tiny_inputs: Path) -> None:
    refs = reader_for("dstill_student")(
        str(tiny_inputs / "cache"), run_id="x", ttt_length=1, max_len=64
    ).read()
    assert [ref.sample_id for ref in refs] == [f"data/00000/{i:08d}.ckpt" for i in range(12)]
    assert all(Path(ref.feature_store_uri.removeprefix("file://")).exists() for ref in refs)


def test_a_name_does_not_depend_on_how_the_cache_is_named(
    tiny_inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_inputs)
    for folder in ("cache", "./cache/", str(tiny_inputs / "cache"), "target/../cache"):
        (first, *_) = reader_for("dstill_teacher")(
            folder, run_id="x", ttt_length=1, max_len=64
        ).read()
        assert first.sample_id == "data/00000/00000000.ckpt"
    assert relative_id("/a/b", "file:///a/b/c/d.ckpt") == "c/d.ckpt"


def test_the_collator_says_where_each_sample_ends() -> None:
    batch = collator()([make_sample(12, seed=1), make_sample(9, seed=2)])
    assert batch["lengths"].tolist() == [12, 9]
    assert batch["input_ids"].shape == (2, 12)
    assert batch["hidden_states"][1, 9:].abs().sum() == 0
    assert batch["loss_mask"][1, 9:].sum() == 0
