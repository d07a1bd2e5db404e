"""A tiny target with a drafter trained on its answers: what evaluation measures in tests."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from specforge.modeling.auto import AutoDraftModel
from specforge.training.model_loading import load_draft_config_source
from specforge.training.strategies.base import StepContext
from torch import Tensor

from specforge_dstill.data import targets
from specforge_dstill.data.capture_transformers import Features, TransformersExtractor
from specforge_dstill.data.chat import TokenSample
from specforge_dstill.data.feature_files import LAST
from specforge_dstill.data.generation import Decoding, generate
from specforge_dstill.modes.block_step import BlockStep, Shares
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.teacher import teacher_strategy
from specforge_dstill.options import DstillOptions
from tests.modes.support import make_batch
from tests.tiny import (
    HEAD_DIM,
    LAYERS,
    MASK_ID,
    STOP_ID,
    WORDS,
    draft_config,
    save_target,
    write_json,
)

STEPS = 4


@dataclass(frozen=True)
class Case:
    """A tiny target, a drafter trained on its answers, and the files around them."""

    folder: Path
    target: Any
    tokenizer: Any

    @property
    def run_file(self) -> Path:
        return self.folder / "dstill.yaml"

    def prompt_ids(self, turns: list[str]) -> list[int]:
        messages = [
            {"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)
        ]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def drafter(self, name: str) -> BlockDrafter:
        """With the target's own embeddings and head."""
        return BlockDrafter(
            self.draft(name),
            lm_head=self.target.lm_head,
            embed_tokens=self.target.get_input_embeddings(),
            mask_token_id=MASK_ID,
        )

    def draft(self, name: str) -> Any:
        """SpecForge's own class, with its own attention."""
        folder = str(self.folder / name)
        return AutoDraftModel.from_pretrained(
            folder, config=load_draft_config_source(folder), attn_implementation="sdpa"
        ).eval()


def make_case(folder: Path, *, head_dim: int = HEAD_DIM, **shape: Any) -> Case:
    """Everything in ``folder``; takes some seconds. ``shape`` is of the draft configs."""
    save_target(folder / "target", head_dim=head_dim)
    case = Case(
        folder,
        targets.load_model(str(folder / "target"), dtype="float32", device="cpu"),
        targets.load_tokenizer(str(folder / "target")),
    )
    for name, head in (("draft", None), ("draft-spark", "rnn")):
        config = draft_config(head=head, head_dim=head_dim, **shape)
        write_json(folder / f"{name}.json", config)
    run = {
        "model": {
            "target_model_path": str(folder / "target"),
            "draft_model_config": str(folder / "draft.json"),
        },
        "data": {"hidden_states_path": str(folder / "cache"), "max_length": 128},
        "output_dir": str(folder / "output"),
        "dstill": {"steps": STEPS},
    }
    # JSON is YAML.
    write_json(case.run_file, run)
    write_json(folder / "run.json", run)
    write_prompts(folder / "one.jsonl", [[text] for text in texts(20, seed=0)])
    write_prompts(folder / "two.jsonl", [texts(2, seed=seed) for seed in range(100, 106)])
    samples, features = training_samples(case)
    train_drafter(case, samples, features)
    train_drafter(case, samples, features, config="draft-spark.json", name="spark")
    return case


def texts(count: int, *, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = WORDS[3:]
    return [" ".join(draw.choices(words, k=draw.randint(3, 9))) for _ in range(count)]


def write_prompts(path: Path, rows: list[list[str]]) -> None:
    lines = (json.dumps({"id": f"{path.stem}-{i}", "turns": row}) for i, row in enumerate(rows))
    path.write_text("\n".join(lines) + "\n")


def training_samples(case: Case) -> tuple[list[TokenSample], list[Features]]:
    """Other answers of the target than those that are measured, with all their states."""
    prompts = [case.prompt_ids([text]) for text in texts(48, seed=1)]
    answers = generate(case.target, prompts, Decoding((STOP_ID,), 24), batch_size=48)
    samples = [
        TokenSample(
            f"s{i}",
            torch.tensor([*prompt, *answer]),
            torch.tensor([0] * len(prompt) + [1] * len(answer)),
        )
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        if len(answer) > 1
    ]
    return samples, TransformersExtractor(case.target, LAYERS, with_last=True)(samples)


def train_drafter(
    case: Case,
    samples: list[TokenSample],
    features: list[Features],
    *,
    config: str = "draft.json",
    name: str = "trained",
    rounds: int = 120,
) -> None:
    """A partial-mask teacher, and the same ``untrained``."""
    torch.manual_seed(0)
    draft = AutoDraftModel.from_config(load_draft_config_source(str(case.folder / config)))
    if name == "trained":
        draft.save_pretrained(case.folder / "untrained")
    drafter = BlockDrafter(
        draft,
        lm_head=case.target.lm_head,
        embed_tokens=case.target.get_input_embeddings(),
        mask_token_id=MASK_ID,
    )
    shares = Shares(0.1, 0.9, 1.0) if drafter.has_heads else Shares()
    step = BlockStep(drafter, DstillOptions(steps=STEPS), shares)
    strategy = teacher_strategy(step, num_anchors=8, seed=0)
    optimizer = torch.optim.Adam(draft.parameters(), lr=5e-3)
    for index in range(rounds):
        chosen = random.Random(index).sample(range(len(samples)), 8)
        batch = {
            samples[i].id: {
                "input_ids": samples[i].input_ids[None],
                "loss_mask": samples[i].loss_mask[None],
                "hidden_states": features[i].hidden_states[None],
                LAST: last_states(features[i])[None],
            }
            for i in chosen
        }
        out = strategy.forward_loss(make_batch(batch), StepContext(index, rounds))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
    draft.config._attn_implementation = "sdpa"
    draft.save_pretrained(case.folder / name)


def last_states(found: Features) -> Tensor:
    assert found.last is not None
    return found.last
