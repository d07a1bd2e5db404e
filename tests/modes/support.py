"""Drafters, batches and strategies for tests, in memory and in seconds.

Shapes: b samples, N blocks, B block size, S sequence length, W width of the features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from specforge.algorithms.common.dflash_family_data import build_collator, build_dspark_collator
from specforge.modeling.auto import AutoDraftModel
from specforge.modeling.draft.dflash import DFlashDraftModel
from specforge.runtime.contracts import TrainBatch
from torch import Tensor, nn
from transformers import Qwen3Config

from specforge_dstill.data.feature_files import LAST
from specforge_dstill.maths.rollout import CommitRule
from specforge_dstill.maths.trajectory import Trajectory
from specforge_dstill.modes.drafter import BlockDrafter, rollout_blocks
from specforge_dstill.modes.feature_source import collator
from specforge_dstill.modes.samples import Sample
from specforge_dstill.token_hash import token_hash
from specforge_dstill.trajectory_store import SampleRecord
from tests import tiny

WIDTH = len(tiny.LAYERS) * tiny.HIDDEN
FULL = ("full_attention", "full_attention")
MIXED = ("full_attention", "sliding_attention")


def make_draft(
    layer_types: tuple[str, ...] = FULL,
    *,
    seed: int = 0,
    head: str | None = None,
    **changes: Any,
) -> DFlashDraftModel:
    """A random drafter, a DSpark one if it has a ``head``; ``changes`` go into its config."""
    torch.manual_seed(seed)
    config = Qwen3Config(**{**tiny.draft_config(layer_types=layer_types, head=head), **changes})
    return AutoDraftModel.from_config(config)


def make_drafter(
    layer_types: tuple[str, ...] = FULL,
    *,
    backend: str = "sdpa",
    blocks_per_group: int = 64,
    seed: int = 0,
    **changes: Any,
) -> BlockDrafter:
    """The drafter with random frozen embeddings and head. Equal arguments, equal weights."""
    draft = make_draft(layer_types, seed=seed, **changes)
    head = nn.Linear(tiny.HIDDEN, tiny.VOCAB, bias=False)
    embeddings = nn.Embedding(tiny.VOCAB, tiny.HIDDEN)
    nn.init.normal_(head.weight, std=0.3)
    return BlockDrafter(
        draft,
        lm_head=head.requires_grad_(False),
        embed_tokens=embeddings.requires_grad_(False),
        mask_token_id=tiny.MASK_ID,
        attention_backend=backend,
        blocks_per_group=blocks_per_group,
    )


def make_sample(length: int, *, seed: int = 0, scored: slice = slice(6, -1)) -> dict[str, Tensor]:
    """Random tokens and features of one sample, as SpecForge's normaliser leaves them."""
    generator = torch.Generator().manual_seed(seed)
    loss_mask = torch.zeros(1, length, dtype=torch.int64)
    loss_mask[:, scored] = 1
    return {
        "input_ids": torch.randint(4, tiny.VOCAB, (1, length), generator=generator),
        "loss_mask": loss_mask,
        "hidden_states": torch.randn(1, length, WIDTH, generator=generator),
        LAST: torch.randn(1, length, tiny.HIDDEN, generator=generator),
    }


def make_batch(samples: Mapping[str, dict[str, Tensor]]) -> TrainBatch:
    """What SpecForge's loader makes of samples given by id: a DSpark batch if they allow for it."""
    has_last = all(LAST in sample for sample in samples.values())
    build = build_dspark_collator if has_last else build_collator
    tensors = collator(build)(list(samples.values()))
    return TrainBatch(sample_ids=list(samples), strategy="test", tensors=tensors)


def three_samples() -> dict[str, dict[str, Tensor]]:
    """Samples of different lengths: the first two are padded in a batch of all."""
    return {
        "data/a.ckpt": make_sample(30, seed=1),
        "data/b.ckpt": make_sample(23, seed=2),
        "data/c.ckpt": make_sample(34, seed=3),
    }


def as_sample(sample_id: str, sample: dict[str, Tensor]) -> Sample:
    return Sample(sample_id, sample["input_ids"][0], sample["loss_mask"][0])


def all_anchors(sample: dict[str, Tensor]) -> Tensor:
    """Every valid anchor, by a plain loop."""
    mask = sample["loss_mask"][0].tolist()
    return torch.tensor([p for p in range(len(mask) - 1) if mask[p] and mask[p + 1]])


def roll(
    drafter: BlockDrafter,
    sample: dict[str, Tensor],
    anchors: Tensor,
    *,
    steps: int = 3,
    **rule: Any,
) -> Trajectory:
    """The teacher's trajectories at ``anchors``."""
    return rollout_blocks(
        drafter,
        sample["hidden_states"][0],
        anchors,
        sample["input_ids"][0][anchors],
        steps=steps,
        rule=CommitRule(drafter.mask_token_id, **{"top_k": 5, **rule}),
    )


class MemoryStore:
    """Records in memory, behind the one method that the student's strategy calls."""

    def __init__(self, records: Sequence[SampleRecord]) -> None:
        self._records = {record.sample_id: record for record in records}

    def record_for(self, sample_id: str, input_ids: Tensor) -> SampleRecord:
        record = self._records[sample_id]
        assert record.token_hash == token_hash(input_ids)
        return record


def collect_in_memory(
    drafter: BlockDrafter, samples: Mapping[str, dict[str, Tensor]], **rule: Any
) -> MemoryStore:
    """Trajectories of every valid anchor of every sample."""
    records = []
    for sample_id, sample in samples.items():
        anchors = all_anchors(sample)
        records.append(
            SampleRecord(
                sample_id=sample_id,
                token_hash=token_hash(sample["input_ids"][0]),
                length=sample["input_ids"].shape[1],
                anchors=anchors,
                trajectory=roll(drafter, sample, anchors, **rule),
            )
        )
    return MemoryStore(records)


def logits_of(drafter: BlockDrafter, states: Tensor) -> Tensor:
    """The LM head over hidden states of any shape: [..., H] -> [..., V]."""
    return drafter.head()(states.flatten(0, -2)).unflatten(0, states.shape[:-1])
