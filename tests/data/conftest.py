"""A tiny target with a ChatML template, built in a second, and files around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<|unk|>", "<|end|>"]
WORDS = ["\n", "user", "assistant", "system", *[f"w{i}" for i in range(50)], "<think>", "</think>"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = [*SPECIAL, *WORDS]
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<|unk|>"))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Split(" ", "removed")]
    )
    raw.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    # As in SmolLM2, the tokenizer names another stop token than the generation config.
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<|pad|>",
        bos_token="<|im_start|>",
        eos_token="<|end|>",
        mask_token="<|mask|>",
        unk_token="<|unk|>",
        extra_special_tokens=["<|im_end|>"],
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def make_model(vocabulary: int) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    return make_model(len(tokenizer))


@pytest.fixture(scope="session")
def target(
    tmp_path_factory: pytest.TempPathFactory,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
) -> Path:
    folder = tmp_path_factory.mktemp("target")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
