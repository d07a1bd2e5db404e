"""Tiny random targets of the paper's architecture classes, made on the spot.

Four layers, hidden 32, the tiny vocabulary; each has what sets its class apart: attention sinks and
experts, scaled embeddings with capped logits in a multimodal model, Mamba.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma4Config,
    GptOssConfig,
    NemotronHConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from tests import tiny

_SHAPE = {
    "vocab_size": tiny.VOCAB,
    "hidden_size": tiny.HIDDEN,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": tiny.STOP_ID,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
_EXPERTS = {"num_experts_per_tok": 2, "intermediate_size": 16}


def _qwen3() -> PreTrainedConfig:
    return Qwen3Config(**_SHAPE, intermediate_size=48, tie_word_embeddings=True)


def _gpt_oss() -> PreTrainedConfig:
    return GptOssConfig(**_SHAPE, **_EXPERTS, num_local_experts=4, sliding_window=8)


def _gemma_4() -> PreTrainedConfig:
    text = {
        **_SHAPE,
        "intermediate_size": 48,
        "global_head_dim": 8,
        "num_global_key_value_heads": 2,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
        "sliding_window": 8,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
        "final_logit_softcapping": 30.0,
    }
    vision = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "patch_size": 4,
        "position_embedding_size": 16,
    }
    return Gemma4Config(text_config=text, vision_config=vision, audio_config=None)


def _nemotron_h() -> PreTrainedConfig:
    shape = {name: value for name, value in _SHAPE.items() if name != "num_hidden_layers"}
    return NemotronHConfig(
        **shape,
        **_EXPERTS,
        layers_block_type=["mamba", "moe", "attention", "moe"],
        mamba_num_heads=8,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=2,
        chunk_size=8,
        n_routed_experts=4,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=16,
    )


#: Architecture class to its configuration and where a saved one keeps its embeddings. transformers
#: writes Nemotron-H's without the "s" of NVIDIA's own checkpoints.
STAND_INS: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "Qwen3ForCausalLM": (_qwen3, "model.embed_tokens.weight"),
    "GptOssForCausalLM": (_gpt_oss, "model.embed_tokens.weight"),
    "Gemma4ForConditionalGeneration": (_gemma_4, "model.language_model.embed_tokens.weight"),
    "NemotronHForCausalLM": (_nemotron_h, "backbone.embedding.weight"),
}


def save_stand_in(architecture: str, folder: Path) -> Any:
    """Save a target of that class with its tokenizer; gives the model."""
    make_config, _ = STAND_INS[architecture]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(make_config()).eval()
    assert type(model).__name__ == architecture
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return model
