"""`export` from checkpoint to folder: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from specforge.modeling.auto import AutoDraftModel
from specforge.training.model_loading import load_draft_config_source

from specforge_dstill import cli
from tests import tiny

from .checkpoints import dspark_config, run_file, save_checkpoint, save_state


def export(folder: Path, inputs: Path, *words: str, output: str = "out") -> int:
    return cli.main(
        [
            "export",
            f"--config={run_file(folder, inputs)}",
            f"--checkpoint={folder / 'student-step7'}",
            f"--output-dir={folder / output}",
            *words,
        ]
    )


def content(folder: Path, name: str = "config.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make_config", [tiny.draft_config, dspark_config])
def test_the_tensors_are_the_checkpoints_own(
    tmp_path: Path, tiny_inputs: Path, dtype: torch.dtype, make_config: Any
) -> None:
    """Names, values and dtype; and the config tells that dtype. SpecForge loads the folder."""
    tensors = save_checkpoint(tmp_path, make_config(), dtype=dtype)
    assert export(tmp_path, tiny_inputs) == 0
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == tensors.keys()
    assert not any("embed" in name or "lm_head" in name for name in written)
    for name, tensor in tensors.items():
        assert written[name].dtype == dtype
        assert torch.equal(written[name], tensor)
    assert content(tmp_path / "out")["dtype"] == str(dtype).removeprefix("torch.")
    folder = str(tmp_path / "out")
    _, told = AutoDraftModel.from_pretrained(
        folder, config=load_draft_config_source(folder), output_loading_info=True
    )
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]


def test_provenance_is_beside_the_config_and_not_in_it(tmp_path: Path, tiny_inputs: Path) -> None:
    save_checkpoint(tmp_path, tiny.draft_config())
    assert export(tmp_path, tiny_inputs, "--to=speculators") == 0
    told = content(tmp_path / "out", "dstill.json")
    assert told["origin"] == {
        "mode": "dstill_student",
        "step": 7,
        "resolved": str(tmp_path / "student-step7"),
    }
    assert told["layout"] == "speculators"
    assert len(told["weights"]) == 64
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "dstill.json",
        "model.safetensors",
    ]
    assert not {"checkpoint", "origin", "run_file"} & content(tmp_path / "out").keys()


def test_a_folder_of_ours_is_exported_by_its_own_config(tmp_path: Path, tiny_inputs: Path) -> None:
    """hf, then native from it, is native at once, whatever the run file's draft config says."""
    save_checkpoint(tmp_path, {**tiny.draft_config(), "block_size": 4})
    assert export(tmp_path, tiny_inputs, output="native") == 0
    assert export(tmp_path, tiny_inputs, "--to=hf", output="hf") == 0
    tiny.write_json(tmp_path / "draft.json", tiny.draft_config())
    again = f"--checkpoint={tmp_path / 'hf'}"
    assert export(tmp_path, tiny_inputs, again, output="again") == 0
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "native" / name).read_bytes()


def test_the_launch_commands_are_printed(
    tmp_path: Path, tiny_inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoint(tmp_path, tiny.draft_config())
    assert export(tmp_path, tiny_inputs) == 0
    printed = capsys.readouterr().out
    assert "--speculative-num-draft-tokens 8" in printed
    assert '"num_speculative_tokens": 7' in printed


def test_nothing_is_written_over(
    tmp_path: Path, tiny_inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoint(tmp_path, tiny.draft_config())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    assert export(tmp_path, tiny_inputs) == 2
    assert "never writes over" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_failed_export_leaves_nothing(
    tmp_path: Path, tiny_inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, tiny.draft_config())
    before = sorted(path.name for path in tmp_path.iterdir())

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specforge_dstill.export.folder.sync_folder", fail)
    monkeypatch.setattr("specforge_dstill.export.folder.json_bytes", fail)
    assert export(tmp_path, tiny_inputs) != 0
    after = sorted(path.name for path in tmp_path.iterdir())
    assert after == sorted([*before, "dstill.yaml"])


def break_weights(tensors: dict[str, torch.Tensor], how: str) -> dict[str, torch.Tensor]:
    """SGLang ignores all of these, and vLLM serves what is missing uninitialised."""
    changed = dict(tensors)
    if how == "missing":
        del changed["layers.1.mlp.up_proj.weight"]
    elif how == "extra":
        changed["embed_tokens.weight"] = torch.zeros(64, 32)
    elif how == "misshapen":
        changed["fc.weight"] = torch.zeros(32, 32)
    else:
        changed["norm.weight"] = changed["norm.weight"].bfloat16()
    return changed


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("missing", "missing layers.1.mlp.up_proj.weight"),
        ("extra", "not the architecture's: embed_tokens.weight"),
        ("misshapen", "fc.weight is [32, 32], should be [32, 64]"),
        ("dtypes", "several dtypes: bfloat16, float32"),
    ],
)
def test_other_weights_than_the_architectures_are_refused(
    tmp_path: Path, tiny_inputs: Path, capsys: pytest.CaptureFixture[str], how: str, told: str
) -> None:
    tensors = save_checkpoint(tmp_path, tiny.draft_config())
    save_state(tmp_path, break_weights(tensors, how), mode="dstill_student")
    assert export(tmp_path, tiny_inputs) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"vocab_size": 32}, "vocab_size is 32"),
        ({"num_target_layers": 36}, "num_target_layers is 36"),
        (
            {"dflash_config": {"target_layer_ids": [1, 4], "mask_token_id": 3}},
            "ids is [1, 4]",
        ),
        (
            {"dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 64}},
            "token_id is 64",
        ),
        ({"dflash_config": {"target_layer_ids": [1, 2]}}, "which token stands for the mask"),
    ],
)
def test_a_drafter_of_another_target_is_refused(
    tmp_path: Path,
    tiny_inputs: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    told: str,
) -> None:
    save_checkpoint(tmp_path, {**tiny.draft_config(), **change})
    assert export(tmp_path, tiny_inputs) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "prefix"), [("dstill_student", "dstill"), ("dflash", "dflash")])
@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        ({"target_layer_ids": (0, 3)}, "trained on target layers [0, 3], the draft config names"),
        ({"mask_token_id": 5}, "trained with mask_token_id 5, this run has 3; set dflash_config."),
    ],
)
def test_a_draft_config_that_has_changed_since_is_refused(
    tmp_path: Path,
    tiny_inputs: Path,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    prefix: str,
    recorded: dict[str, Any],
    told: str,
) -> None:
    """Engines would be told other layers, or another mask token, than it was trained with."""
    tensors = save_checkpoint(tmp_path, tiny.draft_config())
    trained = {"target_layer_ids": (1, 2), "mask_token_id": 3}
    same = {f"{prefix}_{name}": value for name, value in trained.items()}
    save_state(tmp_path, tensors, mode=mode, **same)
    assert export(tmp_path, tiny_inputs) == 0
    other = {f"{prefix}_{name}": value for name, value in (trained | recorded).items()}
    save_state(tmp_path, tensors, mode=mode, **other)
    assert export(tmp_path, tiny_inputs, output="other") == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    arguments = [str(tmp_path / "out"), f"--config={tmp_path / 'dstill.yaml'}"]
    assert cli.main(["check-export", *arguments]) == 2


@pytest.mark.parametrize("named", [5, None])
def test_the_mask_token_of_the_run_file_goes_with_the_folder(
    tmp_path: Path, tiny_inputs: Path, named: int | None
) -> None:
    """Whose draft config names another one, or none."""
    config = tiny.draft_config()
    save_checkpoint(
        tmp_path, {**config, "dflash_config": {**config["dflash_config"], "mask_token_id": named}}
    )
    assert export(tmp_path, tiny_inputs, "--to=hf", "model.mask_token_id=3", output="hf") == 0
    assert content(tmp_path / "hf")["dflash_config"]["mask_token_id"] == 3
    again = f"--checkpoint={tmp_path / 'hf'}"
    assert export(tmp_path, tiny_inputs, again, output="again") == 0
    assert content(tmp_path / "again")["dflash_config"]["mask_token_id"] == 3


def test_a_drafter_of_another_method_is_refused(
    tmp_path: Path, tiny_inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = save_checkpoint(tmp_path, tiny.draft_config())
    save_state(tmp_path, tensors, mode="eagle3")
    assert export(tmp_path, tiny_inputs) == 2
    assert "mode eagle3" in capsys.readouterr().err
