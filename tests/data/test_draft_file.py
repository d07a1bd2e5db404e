"""A draft config's faults: each named with its key, its file and its mend, before training."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specforge_dstill.cli import main
from specforge_dstill.data.draft_file import DraftSource, check_draft_file
from specforge_dstill.errors import UserError
from specforge_dstill.train import main as train
from tests.modes.running import write_run

TARGET = SimpleNamespace(hidden_size=32, num_hidden_layers=4, vocab_size=64)
SOUND: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["full_attention", "full_attention"],
    "intermediate_size": 48,
    "head_dim": 8,
    "num_target_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "block_size": 8,
    "dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 3},
}


def source(folder: Path, text: str | None = None, /, **changes: Any) -> DraftSource:
    path = folder / "draft.json"
    content = {k: v for k, v in {**SOUND, **changes}.items() if v is not None}
    path.write_text(json.dumps(content) if text is None else text)
    return DraftSource(path)


def method(**changes: Any) -> dict[str, Any]:
    return {"dflash_config": {**SOUND["dflash_config"], **changes}}


def test_a_sound_one_passes(tmp_path: Path) -> None:
    source(tmp_path).check(TARGET)
    source(tmp_path, layer_types=None, rope_theta=10000, is_causal=False).check(TARGET)
    slides = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
    source(tmp_path, **slides, use_sliding_window=True).check(TARGET)
    source(tmp_path, **method(mask_token_id=None)).check(SimpleNamespace(text_config=TARGET))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": None}, "vocab_size is missing; name it"),
        ({"head_dim": None}, "head_dim is missing; name it"),
        ({"num_hidden_layers": -2}, "num_hidden_layers is -2, should be a positive integer"),
        ({"hidden_size": 32.0}, "hidden_size is 32.0, should be a positive integer"),
        ({"block_size": 1}, "block_size is 1, should be 2 or more"),
        ({"head_dim": 7}, "head_dim is 7, should be even"),
        ({"rope_theta": "10000"}, 'rope_theta is "10000", should be a positive number'),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0, should be a positive number"),
        ({"is_causal": "no"}, 'is_causal is "no", should be true or false'),
        ({"architectures": ["Foo"]}, 'architectures is ["Foo"], should be ["DFlashDraftModel"]'),
        ({"layer_types": "full"}, 'layer_types is "full", should be a list of full_attention'),
        ({"layer_types": ["full_attention", None]}, "should be a list of full_attention and"),
        ({"layer_types": ["sliding_attention"] * 2}, "set use_sliding_window to true"),
        ({"num_target_layers": 6}, "num_target_layers is 6, the target has 4"),
        ({"block_size": "16"}, 'block_size is "16", should be a positive integer'),
        ({"num_hidden_layers": 5}, "layer_types names 2 layers, num_hidden_layers 5"),
        ({"num_attention_heads": 5}, "num_attention_heads is 5, no multiple of num_key_value"),
        ({"hidden_size": 48}, "hidden_size is 48, the target's is 32"),
        ({"dflash_config": [1]}, "dflash_config is no JSON object"),
        ({"dflash_config": None}, "dflash_config.target_layer_ids is missing; name the layers"),
        (method(target_layer_ids=[2, 2]), "each once"),
        (method(target_layer_ids=[1, 4]), "target_layer_ids is [1, 4], the target has layers"),
        (method(target_layer_ids=[1, 4]), "layers 0 to 3"),
        (method(target_layer_ids=[]), "target_layer_ids is []"),
        (method(mask_token_id=64), "mask_token_id is 64, the target has tokens 0 to 63"),
        (method(mask_token_id="<m>"), 'mask_token_id is "<m>"'),
    ],
)
def test_faults(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        source(tmp_path, **changes).check(TARGET)
    assert str(refused.value).startswith(f"{tmp_path / 'draft.json'}: ")
    assert said in str(refused.value)


def test_a_mask_left_from_another_targets_config(tmp_path: Path) -> None:
    """The target's embeddings have no such row, whatever the draft config's vocab_size."""
    copied = {"vocab_size": 151_936, **method(mask_token_id=151_669)}
    with pytest.raises(UserError, match="is 151669, the target has tokens 0 to 63"):
        source(tmp_path, **copied).check(TARGET)


def test_a_mask_beyond_the_tokenizer_and_within_the_embeddings_is_one(tmp_path: Path) -> None:
    padded = SimpleNamespace(**vars(TARGET), padded_vocab_size=80)
    source(tmp_path, **method(mask_token_id=70)).check(padded)
    with pytest.raises(UserError, match="tokens 0 to 63"):
        source(tmp_path, **method(mask_token_id=70)).check(TARGET)


@pytest.mark.parametrize(("text", "said"), [("{", "not valid JSON"), ("[]", "is no JSON object")])
def test_what_is_no_config(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        source(tmp_path, text).check()


def test_what_a_run_file_puts_over_it_counts(tmp_path: Path) -> None:
    path = source(tmp_path).path
    DraftSource(path, layers=5).check(TARGET)  # SpecForge makes the types of so many
    with pytest.raises(UserError, match="mask_token_id is 99"):
        DraftSource(path, mask=99).check(TARGET)


def test_those_on_the_hub_are_left_to_specforge() -> None:
    for name in (None, "Org/drafter"):
        check_draft_file(SimpleNamespace(draft_model_config=name), TARGET)


@pytest.mark.parametrize("mode", ["dflash", "dstill_teacher"])
@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"hidden_size": 48}, "hidden_size is 48, the target's is 32"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types names 3 layers"),
    ],
)
def test_training_and_capture_tell_them_alike(
    tmp_path: Path,
    tiny_inputs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    changes: dict[str, Any],
    fault: str,
) -> None:
    write_run(tmp_path, tiny_inputs)
    monkeypatch.chdir(tmp_path)
    path = source(tmp_path, **changes).path
    draft = f"model.draft_model_config={path}"
    said = f"error: {path}: {fault}"
    assert train(["--mode", mode, draft]) == 2
    assert said in capsys.readouterr().err
    assert main(["capture", "--conversations", "talks.jsonl", draft]) == 2
    assert said in capsys.readouterr().err


def test_specforges_own_mode_is_told_of_other_layers_before_it_trains(
    tmp_path: Path,
    tiny_inputs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It would end in shapes that cannot be multiplied."""
    write_run(tmp_path, tiny_inputs)
    monkeypatch.chdir(tmp_path)
    cache = f"data.hidden_states_path={tmp_path / 'cache'}"
    talk = [("user", "w0 w1"), ("assistant", "w2 w3 w4 w5")]
    messages = [{"role": role, "content": content} for role, content in talk]
    Path("talks.jsonl").write_text(json.dumps({"id": "a", "conversations": messages}) + "\n")
    assert main(["capture", "--conversations", "talks.jsonl", cache]) == 0
    path = source(tmp_path, **method(target_layer_ids=[0, 1, 2])).path
    assert train(["--mode", "dflash", cache, f"model.draft_model_config={path}"]) == 2
    assert "cache has layers [1,2] of the target" in capsys.readouterr().err


def test_init_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source(tmp_path, block_size=6)
    assert main(["init", "--draft-config", "draft.json"]) == 0
    assert "\n  steps: 5 " in Path("dstill.yaml").read_text()
    source(tmp_path, vocab_size=None)
    assert main(["init", "--draft-config", "draft.json", "--output", "other.yaml"]) == 2
    assert "draft.json: vocab_size is missing" in capsys.readouterr().err
    assert not Path("other.yaml").exists()
