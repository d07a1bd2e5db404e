"""A tiny target, its tokenizer, a drafter and a cache: enough to run every stage in seconds.

Shapes: hidden 32, 4 target layers, vocabulary 64, block size 8.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCAB = 64
HIDDEN = 32
HEAD_DIM = 8
BLOCK_SIZE = 8
LAYERS = [1, 2]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
MASK_ID, STOP_ID = 3, 2
WORDS = ["user", "assistant", "\n", *[f"w{i}" for i in range(VOCAB - len(SPECIAL) - 3)]]
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save_target(folder: Path, *, seed: int = 0, head_dim: int = HEAD_DIM) -> Path:
    """A random Qwen3 target with a word-level tokenizer, saved as a Hugging Face folder."""
    target_model(seed=seed, head_dim=head_dim).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def target_model(
    *,
    seed: int = 0,
    vocab_size: int = VOCAB,
    max_position_embeddings: int = 512,
    initializer_range: float = 0.3,
    head_dim: int = HEAD_DIM,
) -> Qwen3ForCausalLM:
    """The random target itself."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=STOP_ID,
        pad_token_id=0,
        initializer_range=initializer_range,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = STOP_ID
    model.generation_config.pad_token_id = 0
    return model.eval()


def tokenizer() -> PreTrainedTokenizerFast:
    """Of the target's vocabulary."""
    return word_tokenizer(
        [*SPECIAL, *WORDS],
        unknown=SPECIAL[0],
        eos_token=SPECIAL[STOP_ID],
        pad_token=SPECIAL[0],
        mask_token=SPECIAL[MASK_ID],
        extra_special_tokens=SPECIAL[1:2],
    )


def word_tokenizer(words: list[str], *, unknown: str, **special: Any) -> PreTrainedTokenizerFast:
    """A token a word, with the newline as a word of its own; ChatML."""
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Split(" ", "removed")]
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


HEADS = ("none", "vanilla", "gated", "rnn")


def draft_config(
    *,
    layer_types: tuple[str, ...] = ("full_attention",) * 2,
    head: str | None = None,
    head_dim: int = HEAD_DIM,
    window: int = 6,
) -> dict[str, Any]:
    """A two-layer DFlash drafter for the tiny target; with a Markov ``head`` a DSpark one."""
    sliding = "sliding_attention" in layer_types
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": len(layer_types),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "num_target_layers": 4,
        "block_size": BLOCK_SIZE,
        "layer_types": list(layer_types),
        "use_sliding_window": sliding,
        "sliding_window": window if sliding else None,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "dflash_config": {"target_layer_ids": LAYERS, "mask_token_id": MASK_ID},
    }
    if head is not None:
        config["architectures"] = ["DSparkDraftModel"]
        config["dflash_config"] |= {
            "projector_type": "dspark",
            "markov_rank": 0 if head == "none" else 6,
            "markov_head_type": "vanilla" if head == "none" else head,
            "enable_confidence_head": True,
            "confidence_head_with_markov": head != "none",
        }
    return config


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def save_features(
    folder: Path,
    *,
    samples: int = 6,
    length: int = 40,
    seed: int = 0,
    scored: slice = slice(8, -2),
    last: bool = False,
) -> Path:
    """A feature cache of random tokens and states; sample i has ``length + i`` tokens.

    With the target's ``last`` states it is a DSpark drafter's.
    """
    generator = torch.Generator().manual_seed(seed)
    for index in range(samples):
        size = length + index
        loss_mask = torch.zeros(size, dtype=torch.int64)
        loss_mask[scored] = 1
        path = folder / "data" / "00000" / f"{index:08d}.ckpt"
        path.parent.mkdir(parents=True, exist_ok=True)
        features = {
            "input_ids": torch.randint(4, VOCAB, (size,), generator=generator),
            "loss_mask": loss_mask,
            "hidden_states": torch.randn(size, len(LAYERS) * HIDDEN, generator=generator),
        }
        if last:
            features["target_last_hidden_states"] = torch.randn(size, HIDDEN, generator=generator)
        torch.save(features, path)
    return folder
