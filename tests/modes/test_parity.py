"""A block has the same logits in training, in the rollout's first pass, and in decoding.

Decoding is SpecForge's: its DFlashDraftModel with transformers' DynamicCache, fed as
``spec_generate`` feeds it, over several rounds.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from specforge_dstill.maths.root_schedule import RootSchedule
from specforge_dstill.modes.block_step import BlockStep
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.records import StoredRecords
from specforge_dstill.modes.student import StudentDraw, StudentStrategy
from specforge_dstill.option_sections import StudentOptions
from specforge_dstill.options import DstillOptions
from tests import tiny
from tests.modes.support import (
    FULL,
    MIXED,
    WIDTH,
    as_sample,
    collect_in_memory,
    logits_of,
    make_batch,
    make_drafter,
    make_sample,
    roll,
)

B = tiny.BLOCK_SIZE
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
# Prompt of 9 tokens; the rounds accept 1, 5, 8 and 3 tokens.
STARTS = [9, 10, 15, 23]


def decoding_logits(
    drafter: BlockDrafter, sample: dict[str, Tensor], *, backend: str, causal: bool | None
) -> list[Tensor]:
    """[B, V] of each round, the way ``DFlashDraftModel.spec_generate`` runs its draft.

    ``causal`` is of the sliding layers within the block; None where there are none.
    """
    draft = drafter.draft_model
    draft.config._attn_implementation = backend
    cache = DynamicCache()
    positions = torch.arange(sample["input_ids"].shape[1] + B)[None]
    rounds = []
    before = 0
    for start in STARTS:
        block = torch.full((1, B), tiny.MASK_ID)
        block[0, 0] = sample["input_ids"][0, start]
        arguments: dict[str, Any] = {"is_causal": False}
        if causal is not None:
            # spec_generate gives no mask, and SDPA then ignores the window: name it.
            arguments = {"attention_mask": masks(start, causal)}
        states = draft(
            target_hidden=sample["hidden_states"][:, before:start],
            noise_embedding=drafter.embed_tokens(block),
            position_ids=positions[:, cache.get_seq_length() : start + B],
            past_key_values=cache,
            use_cache=True,
            **arguments,
        )
        cache.crop(start)
        rounds.append(logits_of(drafter, states[0]))
        before = start
    return rounds


def masks(start: int, causal: bool) -> dict[str, Tensor]:
    """Masks of one block behind ``start`` context positions.

    SpecForge's window (6 here) is on the context; its own block a position sees up to itself,
    or all of it.
    """
    query = torch.arange(start, start + B)[:, None]
    key = torch.arange(start + B)
    full = torch.ones(1, 1, B, start + B, dtype=torch.bool)
    sliding = (key > query - 6) | (key >= start)
    if causal:
        sliding &= key <= query
    return {"full_attention": full, "sliding_attention": sliding[None, None]}


def training_logits(student: BlockDrafter, sample: dict[str, Tensor]) -> list[Tensor]:
    """[B, V] at the same anchors in a step of the student, in a batch with company."""
    options = DstillOptions(steps=3, student=StudentOptions(p_root_start=1, p_root_end=1))
    company = make_sample(50, seed=8, scored=slice(40, 46))
    samples = {"data/x.ckpt": company, "data/y.ckpt": sample}
    store: Any = collect_in_memory(make_drafter(seed=1), samples)
    seen: list[Tensor] = []
    handle = student.register_forward_hook(lambda _module, _args, states: seen.append(states))
    strategy = StudentStrategy(
        BlockStep(student, options),
        StudentDraw(student.shape, tiny.MASK_ID, 10**6, options.student),
        records=StoredRecords(store),
        schedule=RootSchedule(start=1, end=1),
        seed=0,
    )
    strategy.forward_loss(make_batch(samples))
    handle.remove()
    anchors = store.record_for("data/y.ckpt", as_sample("", sample).input_ids).anchors.tolist()
    return [student.head()(seen[0][1, anchors.index(start)]) for start in STARTS]


def first_pass_logits(drafter: BlockDrafter, sample: dict[str, Tensor]) -> list[Tensor]:
    """[B - 1, V] log-probabilities that the rollout's first pass records, in vocabulary order."""
    legal = tiny.VOCAB - 1
    trajectory = roll(drafter, sample, torch.tensor(STARTS), top_k=legal, every_pass=True)
    found = torch.full((len(STARTS), B - 1, tiny.VOCAB), -torch.inf)
    found.scatter_(2, trajectory.top_ids[:, 0], trajectory.top_logp[:, 0])
    return list(found)


@pytest.mark.parametrize(
    ("layer_types", "told", "causal"),
    [(FULL, {}, None), (MIXED, {}, True), (MIXED, {"is_causal": False}, False)],
    ids=["full", "mixed", "mixed, both ways"],
)
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@torch.no_grad()
def test_training_rollout_and_decoding_agree(
    layer_types: tuple[str, ...], told: dict[str, Any], causal: bool | None, backend: str
) -> None:
    sample = make_sample(40, seed=7)
    assert sample["hidden_states"].shape[2] == WIDTH

    def drafter() -> BlockDrafter:
        return make_drafter(layer_types, **told)

    decoded = decoding_logits(drafter(), sample, backend=backend, causal=causal)
    trained = training_logits(drafter(), sample)
    rolled = first_pass_logits(drafter(), sample)
    legal = [token for token in range(tiny.VOCAB) if token != tiny.MASK_ID]
    worst = 0.0
    for one, other, logp in zip(decoded, trained, rolled, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)
        expected = one.log_softmax(-1)[1:, legal]
        torch.testing.assert_close(logp[:, legal], expected, **TOLERANCE)
        worst = max(
            worst, *(float(x.abs().max()) for x in (one - other, logp[:, legal] - expected))
        )
    print(f"largest difference of a logit: {worst:.1e}")
