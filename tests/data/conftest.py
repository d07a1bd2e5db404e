"""A tiny target whose words a thinking template can use, and files around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from tests import tiny

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<|unk|>", "<|end|>"]
WORDS = ["\n", "user", "assistant", "system", *[f"w{i}" for i in range(50)], "<think>", "</think>"]


def make_tokenizer() -> PreTrainedTokenizerFast:
    # As in SmolLM2, the tokenizer names another stop token than the generation config.
    return tiny.word_tokenizer(
        [*SPECIAL, *WORDS],
        unknown="<|unk|>",
        unk_token="<|unk|>",
        pad_token="<|pad|>",
        bos_token="<|im_start|>",
        eos_token="<|end|>",
        mask_token="<|mask|>",
        extra_special_tokens=["<|im_end|>"],
    )


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    return tiny.target_model(
        vocab_size=len(tokenizer), max_position_embeddings=256, initializer_range=0.2
    )


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
