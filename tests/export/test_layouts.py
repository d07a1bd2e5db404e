"""What is written, key by key: an engine takes its own default for a key that is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from specforge.training.model_loading import load_draft_config_source

from specforge_dstill.data.target_identity import TargetShape
from specforge_dstill.errors import UserError
from specforge_dstill.export.draft_facts import DraftFacts
from specforge_dstill.export.launch_commands import launches
from specforge_dstill.export.layouts import native_config, speculators_config, trainable_config
from specforge_dstill.export.target_facts import TargetFacts
from tests import tiny

from .checkpoints import FULL, SLIDING, WINDOW, dspark_config

TARGET = TargetFacts(
    "org/target",
    TargetShape(4, tiny.HIDDEN, tiny.VOCAB),
    1024,
    ("Qwen3ForCausalLM",),
    None,
    None,
    "hash",
)
BODY = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.2,
    "intermediate_size": 48,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 1024,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 64,
}


def made(
    config: dict[str, Any], folder: Path, *, target: TargetFacts = TARGET
) -> tuple[dict[str, Any], DraftFacts]:
    loaded = load_draft_config_source(str(tiny.write_json(folder / "draft.json", config)))
    facts = DraftFacts.of(loaded)
    native = native_config(loaded, facts, target, dtype=torch.bfloat16)
    return json.loads(json.dumps(native)), facts


def test_native_golden(tmp_path: Path) -> None:
    native, _ = made(tiny.draft_config(), tmp_path)
    assert native == {
        **BODY,
        "architectures": ["DFlashDraftModel"],
        "block_size": 8,
        "is_causal": False,
        "num_target_layers": 4,
        "dflash_config": {
            "block_size": 8,
            "causal": False,
            "mask_token_id": 3,
            "num_target_layers": 4,
            "target_layer_ids": [1, 2],
        },
    }


def test_speculators_golden(tmp_path: Path) -> None:
    native, facts = made(tiny.draft_config(), tmp_path)
    assert speculators_config(native, facts, TARGET) == {
        "architectures": ["DFlashSpeculator"],
        "aux_hidden_state_layer_ids": [2, 3],
        "block_size": 8,
        "draft_vocab_size": 64,
        "dtype": "bfloat16",
        "mask_token_id": 3,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
            "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "org/target"},
        },
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "target_hidden_size": 32,
        "tie_word_embeddings": False,
        "transformer_layer_config": {**BODY, "is_causal": False, "num_target_layers": 4},
    }


def test_a_dspark_drafters_heads_stand_at_the_top_and_nested(tmp_path: Path) -> None:
    """vLLM reads them at the top, SGLang 0.5.23 some there and some nested, SpecForge nested."""
    native, facts = made(dspark_config(), tmp_path)
    heads = {
        "markov_rank": 4,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "mask_token_id": 3,
        "target_layer_ids": [1, 2],
        "sample_from_anchor": True,
    }
    assert native["architectures"] == ["DSparkDraftModel"]
    assert native.items() >= heads.items()
    assert native["dflash_config"].items() >= {**heads, "projector_type": "dspark"}.items()
    speculators = speculators_config(native, facts, TARGET)
    assert speculators["speculators_model_type"] == "dspark"
    assert speculators["sample_from_anchor"] is True
    assert speculators["markov_rank"] == 4
    assert "markov_rank" not in speculators["transformer_layer_config"]


@pytest.mark.parametrize(
    ("layers", "told", "written"),
    [
        ((FULL, FULL), None, False),
        ((SLIDING, SLIDING), None, True),
        ((SLIDING, SLIDING), False, False),
        ((SLIDING, FULL), None, None),
        ((SLIDING, FULL), True, True),
    ],
)
def test_causality_is_said_wherever_one_word_can_say_it(
    tmp_path: Path, layers: tuple[str, ...], told: bool | None, written: bool | None
) -> None:
    """Mixed layers differ by the engines' own default, which one word would overrule."""
    config = tiny.draft_config(layer_types=layers)
    native, facts = made(config if told is None else {**config, "is_causal": told}, tmp_path)
    assert native.get("is_causal") is written
    assert native["dflash_config"].get("causal") is written
    assert native["layer_types"] == list(layers)
    assert native["use_sliding_window"] is (SLIDING in layers)
    assert native["sliding_window"] == (6 if SLIDING in layers else None)
    if written is None:
        with pytest.raises(UserError, match="export --to native"):
            speculators_config(native, facts, TARGET)
    else:
        speculators = speculators_config(native, facts, TARGET)
        assert speculators["sliding_window_non_causal"] is not written


def test_scaled_rotary_embeddings_are_said_in_both_forms(tmp_path: Path) -> None:
    """And their longest sequence, on which their angles depend, stays as trained."""
    rope = {"rope_theta": 5e5, "rope_type": "yarn", "factor": 4.0}
    native, _ = made({**tiny.draft_config(), "rope_parameters": rope}, tmp_path)
    assert native["rope_theta"] == 5e5
    assert native["rope_parameters"].items() >= rope.items()
    assert native["rope_scaling"].items() >= {"rope_type": "yarn", "factor": 4.0}.items()
    assert "rope_theta" not in native["rope_scaling"]
    assert native["max_position_embeddings"] == 512


def test_keys_that_training_does_not_read_are_not_passed_on(tmp_path: Path) -> None:
    """Engines would act on them."""
    config = {**tiny.draft_config(), "logit_scale": 2.0}
    config["dflash_config"] = {**config["dflash_config"], "use_swa": True}
    native, _ = made(config, tmp_path)
    assert "logit_scale" not in native
    assert "use_swa" not in native["dflash_config"]


def test_what_a_target_does_to_embeddings_and_logits_is_passed_on(tmp_path: Path) -> None:
    target = replace(TARGET, softcap=30.0, embed_scale=5.5)
    native, _ = made(tiny.draft_config(), tmp_path, target=target)
    assert native["dflash_config"]["final_logit_softcapping"] == 30.0
    assert native["dflash_config"]["input_embedding_scale"] == 5.5


@pytest.mark.parametrize("config", [tiny.draft_config(), dspark_config()])
def test_every_layout_gives_specforge_the_same_drafter(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    native, facts = made(config, tmp_path)
    for layout in (native, speculators_config(native, facts, TARGET)):
        again, same = made(trainable_config(layout), tmp_path)
        assert (again, same) == (native, facts)


def test_each_engine_counts_in_its_own_way(tmp_path: Path) -> None:
    """A block of 8: DFlash drafts 7 tokens and DSpark 8; SGLang counts the anchor, too."""
    _, facts = made(tiny.draft_config(), tmp_path)
    sglang, vllm = launches(facts, layout="native", folder="my drafter", target=TARGET)
    assert sglang.command == (
        "python -m sglang.launch_server --model-path org/target --speculative-algorithm DFLASH "
        "--speculative-draft-model-path 'my drafter' --speculative-num-draft-tokens 8"
    )
    assert vllm.command == (
        "vllm serve org/target --speculative-config "
        '\'{"method": "dflash", "model": "my drafter", "num_speculative_tokens": 7}\''
    )
    _, dspark = made(dspark_config(), tmp_path)
    sglang, vllm = launches(dspark, layout="native", folder="drafter", target=TARGET)
    assert "DSPARK" in str(sglang.command)
    assert str(sglang.command).endswith("--speculative-num-draft-tokens 9")
    assert '"method": "dspark"' in str(vllm.command)
    assert '"num_speculative_tokens": 8' in str(vllm.command)


def test_what_an_engine_cannot_serve_is_said(tmp_path: Path) -> None:
    _, mixed = made(tiny.draft_config(layer_types=(SLIDING, FULL), window=WINDOW), tmp_path)
    sglang, vllm = launches(mixed, layout="native", folder="d", target=TARGET)
    assert str(vllm.command).startswith("VLLM_USE_V2_MODEL_RUNNER=1 ")
    assert "GPU" in vllm.notes[0]
    assert not sglang.notes
    config = {
        **tiny.draft_config(layer_types=(SLIDING, SLIDING), window=WINDOW),
        "is_causal": False,
    }
    _, unusual = made(config, tmp_path)
    assert "0.5.14" in launches(unusual, layout="native", folder="d", target=TARGET)[0].notes[0]
    for launch in launches(mixed, layout="hf", folder="d", target=TARGET):
        assert launch.command is None


def test_no_engine_is_named_for_a_drafter_of_the_targets_last_layer(tmp_path: Path) -> None:
    """transformers gives that layer's output after the final norm, vLLM before it, SGLang not."""
    config = tiny.draft_config()
    config["dflash_config"] = {**config["dflash_config"], "target_layer_ids": [1, 3]}
    _, facts = made(config, tmp_path)
    for launch in launches(facts, layout="native", folder="d", target=TARGET):
        assert launch.command is None
        assert "last layer, 3" in launch.notes[0]


def test_no_engine_is_named_for_a_window_smaller_than_a_block(tmp_path: Path) -> None:
    """Training lets a block see itself whole, engines cut it by the window, too."""
    _, facts = made(tiny.draft_config(layer_types=(SLIDING, FULL), window=7), tmp_path)
    for launch in launches(facts, layout="native", folder="d", target=TARGET):
        assert launch.command is None
        assert "window of 7" in launch.notes[0]
    _, facts = made(tiny.draft_config(layer_types=(SLIDING, FULL), window=8), tmp_path)
    assert launches(facts, layout="native", folder="d", target=TARGET)[0].command
