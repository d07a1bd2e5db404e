"""z-lab's dflash over prompts of token ids, in an environment of its own; prints its answers.

    python in_dflash.py TARGET DRAFTER MAX_NEW_TOKENS STOP_IDS < prompts.json

It is made for a GPU: what reads the GPU's clock is given the CPU's.
"""

from __future__ import annotations

import json
import sys
import time

import dflash.model
import torch
from answers import Answers, as_tokens
from transformers import AutoModelForCausalLM


def main(target_path: str, drafter_path: str, max_new_tokens: str, stop_ids: str) -> None:
    torch.set_num_threads(1)
    dflash.model._cuda_time = time.perf_counter
    options = {"attn_implementation": "sdpa", "dtype": torch.float32}
    target = AutoModelForCausalLM.from_pretrained(target_path, **options).eval()
    drafter = dflash.model.DFlashDraftModel.from_pretrained(drafter_path, **options).eval()
    found = []
    for ids in json.load(sys.stdin):
        found.append(
            dflash.model.dflash_generate(
                drafter,
                target,
                torch.tensor([ids]),
                int(max_new_tokens),
                json.loads(stop_ids),
                temperature=0.0,
                return_stats=True,
            )
        )
    produced = [count for one in found for count in one.acceptance_lengths]
    tokens = as_tokens(one.output_ids[0, one.num_input_tokens :].tolist() for one in found)
    print(Answers("dflash", tokens, len(produced), sum(produced) - len(produced)).to_json())


if __name__ == "__main__":
    main(*sys.argv[1:])
