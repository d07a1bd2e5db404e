"""What of a target's generation config is not applied here is found and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, Qwen3ForCausalLM

from specforge_dstill.data.generation import Decoding, generate
from specforge_dstill.data.generation_config import unheeded_settings, unheeded_text


def unheeded(folder: Path, *, sampled: bool = False, **settings: Any) -> dict[str, Any]:
    GenerationConfig(eos_token_id=2, **settings).save_pretrained(folder)
    return unheeded_settings(folder, sampled=sampled)


def test_what_is_an_option_or_changes_nothing_is_not_told(tmp_path: Path) -> None:
    assert unheeded_settings(tmp_path, sampled=True) == {}, "a target without the file"
    options = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    neutral = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "suppress_tokens": []}
    assert unheeded(tmp_path, sampled=True, **options, **neutral, typical_p=1.0, min_p=0.0) == {}


def test_what_changes_the_logits_is_told(tmp_path: Path) -> None:
    found = unheeded(tmp_path, repetition_penalty=1.3, suppress_tokens=[3, 4])
    assert found == {"repetition_penalty": 1.3, "suppress_tokens": [3, 4]}
    assert "sets repetition_penalty = 1.3, suppress_tokens = [3, 4]," in unheeded_text(found)


def test_what_changes_samples_alone_is_told_of_samples(tmp_path: Path) -> None:
    assert unheeded(tmp_path, do_sample=True, min_p=0.1) == {}
    assert unheeded(tmp_path, do_sample=True, min_p=0.1, sampled=True) == {"min_p": 0.1}


@pytest.mark.parametrize("penalty", [None, 5.0])
def test_it_is_told_where_our_answers_are_not_those_of_generate(
    model: Qwen3ForCausalLM, tmp_path: Path, penalty: float | None
) -> None:
    found = unheeded(tmp_path, repetition_penalty=penalty)
    prompt = [7, 12, 13, 14, 8]
    theirs = model.generate(
        torch.tensor([prompt]),
        GenerationConfig(
            eos_token_id=2, max_new_tokens=12, do_sample=False, pad_token_id=0,
            repetition_penalty=penalty,
        ),
    )  # fmt: skip
    (ours,) = generate(model, [prompt], Decoding((2,), 12))
    assert (theirs[0, len(prompt) :].tolist() != ours) == bool(found)
