"""The demo's target: a small Qwen3 model, trained here on little market stories.

    python examples/demo/target.py --output runs/demo

writes ``target/`` (a Hugging Face folder), ``draft.json`` and ``draft-dspark.json`` (a DFlash and a
DSpark drafter for it), and the prompts ``train-prompts.jsonl`` and ``eval-prompts.jsonl``, which
share no question.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from stories import TOKEN, draw_pairs, vocabulary
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<|unk|>"]
PAD, START, STOP, MASK = range(4)
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TARGET = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
BLOCK_SIZE = 16
DRAFT_LAYERS = 2
TARGET_LAYERS = [1, 3]

TRAIN_PROMPTS, EVAL_PROMPTS = 2000, 200
TEXT_SEED, PROMPT_SEED = 0, 1


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Word-level: one token a word, digit or punctuation mark."""
    words = [*SPECIAL, "\n", "user", "assistant", *vocabulary()]
    backend = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<|unk|>")
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), "removed", invert=True)
    backend.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="##", cleanup=True),
            decoders.Fuse(),
            decoders.Replace(Regex(r"(?<=\d) (?=\d)"), ""),
            decoders.Replace(" :", ":"),
        ]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=SPECIAL[PAD],
        eos_token=SPECIAL[STOP],
        mask_token=SPECIAL[MASK],
        unk_token="<|unk|>",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def train_target(tokenizer: PreTrainedTokenizerFast, *, texts: int) -> Qwen3ForCausalLM:
    """One pass of next-token prediction over ``texts`` fresh stories."""
    torch.manual_seed(TEXT_SEED)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        tie_word_embeddings=False,
        bos_token_id=START,
        eos_token_id=STOP,
        pad_token_id=PAD,
        **TARGET,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = STOP
    model.generation_config.pad_token_id = PAD
    rows = [
        torch.tensor(tokenizer.apply_chat_template(chat, tokenize=True)["input_ids"])
        for chat in chats(texts)
    ]
    batch = 16
    steps = texts // batch
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / (0.03 * steps), (1 + math.cos(math.pi * step / steps)) / 2),
    )
    start = time.monotonic()
    for step in range(steps):
        ids = pad_sequence(rows[step * batch : (step + 1) * batch], batch_first=True)
        labels = ids.masked_fill(ids == PAD, -100)
        loss = model(ids, attention_mask=(ids != PAD).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}/{steps} loss {loss:.3f} {time.monotonic() - start:.0f} s")
    return model


def chats(count: int) -> list[list[dict[str, str]]]:
    """Stories as conversations."""
    return [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in draw_pairs(TEXT_SEED, count)
    ]


def draft_config(vocab_size: int) -> dict[str, Any]:
    """A two-layer DFlash drafter for the target."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        **TARGET,
        "num_hidden_layers": DRAFT_LAYERS,
        "rms_norm_eps": 1e-6,
        "num_target_layers": TARGET["num_hidden_layers"],
        "block_size": BLOCK_SIZE,
        "layer_types": ["full_attention"] * DRAFT_LAYERS,
        "tie_word_embeddings": False,
        "dflash_config": {"target_layer_ids": TARGET_LAYERS, "mask_token_id": MASK},
    }


def dspark_config(vocab_size: int) -> dict[str, Any]:
    """The same as a DSpark drafter: 16 slots predict the 16 tokens after the anchor."""
    config = draft_config(vocab_size)
    heads = {
        "projector_type": "dspark",
        "markov_rank": 32,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    return {
        **config,
        "architectures": ["DSparkDraftModel"],
        "dflash_config": {**config["dflash_config"], **heads},
    }


def write_prompts(folder: Path) -> None:
    """Training and evaluation prompts: distinct questions of the same kind."""
    drawn = draw_pairs(PROMPT_SEED, 2 * (TRAIN_PROMPTS + EVAL_PROMPTS))
    questions = list(dict.fromkeys(question for question, _ in drawn))
    parts = {
        "train-prompts.jsonl": questions[:TRAIN_PROMPTS],
        "eval-prompts.jsonl": questions[TRAIN_PROMPTS : TRAIN_PROMPTS + EVAL_PROMPTS],
    }
    for name, chosen in parts.items():
        lines = [json.dumps({"turns": [question]}) + "\n" for question in chosen]
        (folder / name).write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("runs/demo"))
    parser.add_argument("--texts", type=int, default=9_600, help="stories to train on")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    write_prompts(args.output)
    for name, config in (("draft", draft_config), ("draft-dspark", dspark_config)):
        text = json.dumps(config(len(tokenizer)), indent=2)
        (args.output / f"{name}.json").write_text(text + "\n")
    model = train_target(tokenizer, texts=args.texts)
    model.save_pretrained(args.output / "target")
    tokenizer.save_pretrained(args.output / "target")


if __name__ == "__main__":
    main()
