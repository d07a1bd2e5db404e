"""A transformers model as a target: its features, its cache, and those that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.transformers_target import (
    TransformersTarget,
    check_own_code,
    check_rolls_back,
)
from tests import tiny

IDS = torch.tensor([5, 9, 12, 33, 7, 20, 41, 8])
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def target(model: Any, layers: list[int]) -> TransformersTarget:
    return TransformersTarget(model, [model.model.layers[layer] for layer in layers])


@torch.inference_mode()
def whole(model: Any, ids: Tensor, layers: list[int]) -> tuple[Tensor, Tensor]:
    """Logits and features of a sequence read at once."""
    out = model(ids[None], output_hidden_states=True)
    return out.logits[0], torch.cat([out.hidden_states[layer + 1][0] for layer in layers], -1)


@torch.inference_mode()
def test_pieces_and_steps_back_give_what_the_whole_gives() -> None:
    model, layers = tiny.target_model(), [2, 0]
    session = target(model, layers).begin()
    logits, states = whole(model, IDS, layers)
    before = hooks(model)  # transformers' own
    read = session.read(IDS[:3], every_logit=False, states=True)
    torch.testing.assert_close(read.logits, logits[2:3], **TOLERANCE)
    torch.testing.assert_close(read.states, states[:3], **TOLERANCE)
    # A wrong draft, forgotten but for its first token.
    session.read(torch.tensor([33, 50, 51, 52]), every_logit=True, states=True)
    session.roll_back(4)
    read = session.read(IDS[4:7], every_logit=True, states=True)
    torch.testing.assert_close(read.logits, logits[4:7], **TOLERANCE)
    torch.testing.assert_close(read.states, states[4:7], **TOLERANCE)
    read = session.read(IDS[7:], every_logit=False, states=False)
    torch.testing.assert_close(read.logits, logits[7:], **TOLERANCE)
    assert read.states is None
    assert hooks(model) == before, "none is left behind"


def hooks(model: Any) -> list[int]:
    return [len(layer._forward_hooks) for layer in model.model.layers]


@torch.inference_mode()
def test_a_whole_decoder_gives_its_last_states() -> None:
    """Which is what stands for the last layer: after the final norm."""
    model = tiny.target_model()
    session = TransformersTarget(model, [model.model]).begin()
    read = session.read(IDS, every_logit=True, states=True)
    torch.testing.assert_close(read.states, whole(model, IDS, [3])[1], **TOLERANCE)


SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.mark.parametrize(
    ("kind", "settings", "name", "what"),
    [
        ("Mamba", {}, "MambaForCausalLM", "mamba"),
        ("Mamba2", None, "Mamba2ForCausalLM", "mamba"),
        ("Jamba", {}, "JambaForCausalLM", "mamba"),
        ("Qwen3Next", {}, "Qwen3NextForCausalLM", "linear_attention"),
        ("FalconH1", {}, "FalconH1ForCausalLM", "hybrid"),
        ("Lfm2", {"layer_types": ["conv", "full_attention"]}, "Lfm2ForCausalLM", "conv"),
        ("NemotronH", None, "NemotronHForCausalLM", "mamba"),
        ("Mistral", {"sliding_window": 8}, "MistralForCausalLM", "sliding_attention"),
        ("Gemma3Text", {}, "Gemma3ForCausalLM", "sliding_attention"),
        ("GptOss", {}, "GptOssForCausalLM", "sliding_attention"),
        ("Gemma4Text", None, "Gemma4ForCausalLM", "sliding_attention"),
        ("Llama4Text", None, "Llama4ForCausalLM", "chunked_attention"),
        ("Rwkv", None, "RwkvForCausalLM", "a running state"),
    ],
)
def test_a_cache_that_cannot_be_rolled_back_is_refused_by_name(
    kind: str, settings: dict[str, Any] | None, name: str, what: str
) -> None:
    make = getattr(transformers, f"{kind}Config")
    config = make() if settings is None else make(**{**SMALL, **settings})
    with pytest.raises(UserError) as refused:
        check_rolls_back(config)
    said = str(refused.value)
    assert said.startswith(name)
    assert what in said
    assert "SGLang or vLLM" in said
    assert "\n" not in said


class OwnConfig(transformers.Qwen3Config):
    """Of a target's own code, which transformers does not know."""


class Hybrid(nn.Module):
    """Its own code: attention in one of its layers, and the others keep nothing in the cache."""

    device = "cpu"

    def __init__(self, layer: int, *, stateful: bool = False) -> None:
        super().__init__()
        self.config, self.layer = OwnConfig(**{**SMALL, "num_hidden_layers": 7}), layer
        self._is_stateful = stateful

    def forward(self, input_ids: Tensor, past_key_values: Any, use_cache: bool) -> None:
        keys = torch.zeros(1, 1, input_ids.shape[1], 8)
        past_key_values.update(keys, keys, self.layer)


@pytest.mark.parametrize("layer", [0, 6])
def test_own_code_that_keeps_more_than_keys_and_values_is_refused(layer: int) -> None:
    """Its configuration names no kinds of layers, so that alone it is taken."""
    model = Hybrid(layer)
    with pytest.raises(UserError) as refused:
        check_own_code(model)
    told = "Hybrid keeps the keys and values of all tokens in 1 of 7 layers: in transformers its"
    assert str(refused.value).startswith(told)
    assert "SGLang or vLLM" in str(refused.value)
    with pytest.raises(UserError, match="Hybrid has a running state"):
        check_own_code(Hybrid(layer, stateful=True))


def test_own_code_that_keeps_every_token_is_taken() -> None:
    model = tiny.target_model()
    check_own_code(model)
    model.config = OwnConfig(**model.config.to_dict())
    check_own_code(model)


@pytest.mark.parametrize(
    "config",
    [
        transformers.Qwen3Config(**SMALL),
        transformers.LlamaConfig(**SMALL),
        transformers.MistralConfig(**SMALL, sliding_window=None),
        transformers.Qwen2Config(**SMALL, use_sliding_window=False, sliding_window=8),
        transformers.DeepseekV3Config(),
        transformers.GPT2Config(),
    ],
    ids=lambda config: config.model_type,
)
def test_other_targets_are_taken(config: Any) -> None:
    check_rolls_back(config)
