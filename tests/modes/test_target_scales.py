"""Embeddings and logits are read as the target itself reads them (Gemma scales and caps)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GemmaConfig,
    GptOssConfig,
    Qwen3Config,
)

from specforge_dstill.modes.target_scales import as_target_embeds, embed_scale, logit_softcap

SHAPE = {
    "vocab_size": 20,
    "hidden_size": 12,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
}
GEMMA_3N = {
    "vocab_size_per_layer_input": 20,
    "hidden_size_per_layer_input": 4,
    "num_kv_shared_layers": 0,
    "laurel_rank": 2,
    "intermediate_size": [8, 8],
    "activation_sparsity_pattern": [0.0, 0.0],
    "layer_types": ["sliding_attention", "full_attention"],
}
GEMMA_4 = {"global_head_dim": 4, "hidden_size_per_layer_input": 0}
GPT_OSS = {"num_local_experts": 2, "num_experts_per_tok": 1}
IDS = torch.tensor([[1, 5, 19]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("kind", "changes", "scales"),
    [
        (GemmaConfig, {}, True),
        (Gemma2Config, {}, True),
        (Gemma3TextConfig, {}, True),
        (Gemma3nTextConfig, GEMMA_3N, True),
        (Gemma4TextConfig, GEMMA_4, True),
        (Qwen3Config, {}, False),
        (GptOssConfig, GPT_OSS, False),
    ],
)
def test_a_drafter_reads_the_embeddings_that_the_target_reads(
    kind: Any, changes: dict[str, Any], scales: bool, dtype: torch.dtype
) -> None:
    config = kind(**{**SHAPE, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    theirs = model.get_input_embeddings()
    plain = nn.Embedding.from_pretrained(theirs.weight.detach())  # as SpecForge loads them
    ours = as_target_embeds(plain, config)
    assert torch.equal(ours(IDS), theirs(IDS))
    assert torch.equal(ours(IDS), plain(IDS)) is not scales


def test_scaled_embeddings_share_their_weights() -> None:
    """One copy: a tied head, and the target that an evaluation runs, keep the same tensor."""
    plain = nn.Embedding(20, 12)
    scaled = as_target_embeds(plain, Gemma3TextConfig(**SHAPE))
    assert scaled.weight is plain.weight
    scaled.weight = nn.Parameter(torch.ones(20, 12))
    assert torch.equal(scaled(IDS), torch.full((1, 3, 12), 12**0.5))


def test_a_multimodal_target_is_asked_for_its_language_model() -> None:
    text = Gemma3TextConfig(**SHAPE)
    assert embed_scale(SimpleNamespace(text_config=text, model_type="gemma3")) == 12**0.5


def test_the_cap_of_the_target() -> None:
    assert logit_softcap(Qwen3Config()) is None
    assert logit_softcap(Gemma2Config(final_logit_softcapping=30.0)) == 30.0
    text = SimpleNamespace(final_logit_softcapping=20.0)
    assert logit_softcap(SimpleNamespace(text_config=text)) == 20.0
