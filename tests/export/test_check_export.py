"""`check-export`: what it finds in a folder that was changed, and that a sound one passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specforge_dstill import cli
from tests import tiny

from .checkpoints import FULL, SLIDING, WINDOW, dspark_config, exported, save_checkpoint, save_state

CONFIGS = {
    "full": tiny.draft_config(),
    "sliding": tiny.draft_config(layer_types=(SLIDING, SLIDING), window=WINDOW),
    "mixed": tiny.draft_config(layer_types=(SLIDING, FULL), window=WINDOW),
    "not causal": {
        **tiny.draft_config(layer_types=(SLIDING, SLIDING), window=WINDOW),
        "is_causal": False,
    },
}


@pytest.fixture(scope="module")
def inputs(tiny_inputs: Path) -> Path:
    return tiny_inputs


def check(out: Path, *words: str, config: bool = True) -> int:
    named = [f"--config={out.parent / 'dstill.yaml'}"] if config else []
    return cli.main(["check-export", str(out), *named, *words])


def change_config(out: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = out / "config.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("layout", ["native", "speculators"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_sound_folder_passes_and_drafts_as_in_training(
    tmp_path: Path,
    inputs: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    layout: str,
) -> None:
    """Bit by bit: the same weights, read by the same class, over the same features."""
    if (kind, layout) == ("mixed", "speculators"):
        pytest.skip("cannot be said in that layout")
    out = exported(tmp_path, inputs, CONFIGS[kind], f"--to={layout}")
    capsys.readouterr()
    assert check(out) == 0
    printed = capsys.readouterr().out
    assert "the checkpoint’s own" in printed
    assert "64 blocks" in printed
    assert "448 of 448 predictions the same, largest difference 0 of" in printed
    assert "written as [2, 3]" if layout == "speculators" else "written as [1, 2]" in printed
    assert '"num_speculative_tokens": 7' in printed


def test_the_engines_own_keys_are_checked_without_training_too(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    out = exported(tmp_path, inputs, CONFIGS["full"])
    monkeypatch.chdir(out)
    assert check(out, f"--target={inputs / 'target'}", config=False) == 0
    assert "not compared: no run file" in capsys.readouterr().out
    change_config(out, lambda found: found.pop("is_causal"))
    assert check(out, f"--target={inputs / 'target'}", config=False) == 1
    assert "is_causal is missing, should be false" in capsys.readouterr().out


def test_a_run_files_cache_that_is_elsewhere_is_one_finding(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rest of the check goes without it; a cache named on the command line must be there."""
    out = exported(tmp_path, inputs, CONFIGS["full"])
    assert check(out, "data.hidden_states_path=nowhere") == 0
    printed = capsys.readouterr().out
    assert "the checkpoint’s own" in printed
    assert "not compared: nowhere: no such feature cache" in printed
    assert check(out, "--cache=nowhere") == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c.update(block_size=4), "block_size is 4, should be 8"),
        (lambda c: c["dflash_config"].pop("block_size"), "dflash_config.block_size is missing"),
        (lambda c: c.pop("rope_theta"), "rope_theta is missing, should be 10000.0"),
        (lambda c: c["dflash_config"].update(target_layer_ids=[2, 3]), "is [2, 3], should be [1"),
        (
            lambda c: c["dflash_config"].update(target_layer_ids=[1, 9]),
            "the target has layers 0 to 3",
        ),
        (lambda c: c["dflash_config"].update(mask_token_id=5), "mask_token_id is 5, should be 3"),
        (lambda c: c["dflash_config"].update(use_swa=True), "use_swa is true: engines act on it"),
        (lambda c: c.update(dtype="bfloat16"), "names dtype bfloat16, the tensors are float32"),
    ],
)
def test_a_changed_config_is_found(
    tmp_path: Path,
    inputs: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], Any],
    told: str,
) -> None:
    """Each of these is served without an error."""
    out = exported(tmp_path, inputs, CONFIGS["full"])
    change_config(out, change)
    assert check(out) == 1
    assert told in capsys.readouterr().out


def add(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.weight"] = torch.zeros(64, 32)


def spoil(tensors: dict[str, torch.Tensor]) -> None:
    tensors["fc.weight"][0, 0] += 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tensors: tensors.pop("fc.weight"), "missing fc.weight"),
        (add, "not the architecture's: lm_head.weight"),
        (spoil, "fc.weight has other values than the checkpoint"),
    ],
)
def test_changed_weights_are_found(
    tmp_path: Path,
    inputs: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, torch.Tensor]], Any],
    told: str,
) -> None:
    out = exported(tmp_path, inputs, CONFIGS["full"])
    tensors = load_file(out / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    assert check(out) == 1
    assert told in capsys.readouterr().out


def test_a_drafter_of_the_targets_last_layer_is_a_fault(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = {"target_layer_ids": [1, 3], "mask_token_id": 3}
    out = exported(tmp_path, inputs, {**tiny.draft_config(), "dflash_config": method})
    assert check(out) == 1
    assert "before the final norm" in capsys.readouterr().out


def test_a_checkpoint_that_moved_on_is_not_mistaken_for_the_exported_one(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = exported(tmp_path, inputs, CONFIGS["full"])
    tensors = save_checkpoint(tmp_path, CONFIGS["full"])
    save_state(tmp_path, {n: t + 1 for n, t in tensors.items()}, mode="dstill_student")
    assert check(out) == 1
    assert "other values than the checkpoint" in capsys.readouterr().out
    assert check(out, f"--checkpoint={tmp_path / 'nothing'}") == 2


def test_a_dspark_folder_is_checked_as_far_as_it_is_known(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = exported(tmp_path, inputs, dspark_config())
    assert check(out) == 0
    capsys.readouterr()
    change_config(out, lambda content: content.pop("markov_rank"))
    assert check(out) == 1
    assert "markov_rank is missing, should be 4" in capsys.readouterr().out


def test_what_is_no_drafter_is_refused(
    tmp_path: Path, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, f"--target={inputs / 'target'}", config=False) == 2
    assert "no exported drafter" in capsys.readouterr().err
