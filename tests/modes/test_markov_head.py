"""DSpark's heads in their low-rank form against SpecForge's own; which slot predicts what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specforge.algorithms.common.dflash_family_model import OnlineDSparkModel
from torch import Tensor

from specforge_dstill.modes.decoding import DecodingDrafter
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.markov_head import run_heads
from tests import tiny
from tests.modes.support import make_drafter, make_sample, roll

SLOTS = tiny.BLOCK_SIZE
ANCHORS = torch.tensor([9, 14, 20])
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
MARKOV_HEADS = [head for head in tiny.HEADS if head != "none"]


def states_at_the_root(drafter: BlockDrafter, sample: dict[str, Tensor]) -> Tensor:
    """[n, slots, H] of SpecForge's draft model: the anchor's slot first."""
    blocks = torch.full((len(ANCHORS), SLOTS + 1), tiny.MASK_ID)
    blocks[:, 0] = sample["input_ids"][0, ANCHORS]
    return drafter(blocks[None], ANCHORS[None], sample["hidden_states"])[0, :, 1:]


@pytest.mark.parametrize("head", tiny.HEADS)
@torch.no_grad()
def test_teacher_forced_heads_are_specforges(head: str) -> None:
    drafter = make_drafter(head=head)
    draft, generator = drafter.draft_model, torch.Generator().manual_seed(1)
    tokens = torch.randint(tiny.VOCAB, (2, 3, SLOTS + 1), generator=generator)
    states = torch.randn(2, 3, SLOTS + 1, tiny.HIDDEN, generator=generator)
    found = run_heads(draft, states, tokens)
    base = torch.randn(2, 3, SLOTS, tiny.VOCAB, generator=generator)
    arguments = {"prev_token_ids": tokens[..., :-1], "hidden_states": states[..., 1:, :]}
    expected = draft.apply_logits_head(base, **arguments)
    if head == "none":
        assert found.latents is None
        assert torch.equal(expected, base)
    else:
        torch.testing.assert_close(base + found.latents @ found.weight.T, expected, **CLOSE)
    torch.testing.assert_close(found.confidence, draft.predict_confidence(**arguments))


@pytest.mark.parametrize("head", MARKOV_HEADS)
@torch.no_grad()
def test_no_head_sees_the_token_that_it_predicts(head: str) -> None:
    """Latents and confidence of a position come from the tokens before it, and do so."""
    draft, generator = make_drafter(head=head).draft_model, torch.Generator().manual_seed(1)
    tokens = torch.randint(4, tiny.VOCAB, (1, 1, SLOTS + 1), generator=generator)
    states = torch.randn(1, 1, SLOTS + 1, tiny.HIDDEN, generator=generator)
    before = run_heads(draft, states, tokens)
    for position in range(1, SLOTS + 1):
        others = tokens.clone()
        others[..., position:] = (others[..., position:] + 5) % tiny.VOCAB
        after = run_heads(draft, states, others)
        for name in ("latents", "confidence"):
            one, other = getattr(before, name)[0, 0], getattr(after, name)[0, 0]
            assert torch.equal(one[:position], other[:position])
            if position < SLOTS:
                assert not torch.equal(one[position], other[position])


@pytest.mark.parametrize("head", tiny.HEADS)
@torch.no_grad()
def test_one_pass_is_specforges_chain_over_all_slots(head: str) -> None:
    """Rollout and decoding draft what SpecForge's head samples from the states of every slot."""
    drafter, sample = make_drafter(head=head), make_sample(40, seed=4)
    states = states_at_the_root(drafter, sample)
    logits = drafter.head()(states.flatten(0, 1)).unflatten(0, states.shape[:2])
    logits[..., tiny.MASK_ID] = -torch.inf
    expected = logits.argmax(-1)
    if head != "none":
        expected, _ = drafter.draft_model.markov_head.sample_block_tokens(
            logits, first_prev_token_ids=sample["input_ids"][0, ANCHORS], hidden_states=states
        )
    assert expected.shape == (len(ANCHORS), SLOTS)
    assert torch.equal(roll(drafter, sample, ANCHORS, steps=1).endpoint[:, 1:], expected)
    for row, anchor in enumerate(ANCHORS.tolist()):
        session = DecodingDrafter(drafter, 1).begin()
        known, token = sample["hidden_states"][0, :anchor], sample["input_ids"][0, anchor]
        assert torch.equal(session.draft(known, token[None], None).tokens, expected[row])


def test_training_labels_the_anchors_slot_with_the_token_after_it() -> None:
    """What ``shift`` 1 rests on: slot j learns token anchor + 1 + j, after token anchor + j."""
    model: Any = SimpleNamespace(block_size=SLOTS)
    ids, anchors = torch.arange(40)[None], torch.tensor([[9, 14]])
    labels, scored, _ = OnlineDSparkModel._build_dspark_labels_and_mask(
        model, ids, torch.ones_like(ids), anchors, torch.ones(1, 2, dtype=torch.bool)
    )
    assert scored.all()
    expected = anchors[..., None] + 1 + torch.arange(SLOTS)
    assert torch.equal(labels, expected)
    shape = make_drafter(head="none").shape
    assert (shape.slots, shape.positions) == (SLOTS, SLOTS + 1)


@pytest.mark.parametrize("head", MARKOV_HEADS)
@torch.no_grad()
def test_specforges_own_sampling_reads_one_slot_too_far(head: str) -> None:
    """``spec_generate`` leaves the anchor's slot out, and starts with what slot 1 learned: the
    second token after the anchor is proposed as the first. Should this fail, SpecForge has mended
    it."""
    drafter, sample = make_drafter(head=head), make_sample(40, seed=4)
    states = states_at_the_root(drafter, sample)
    anchor_ids = sample["input_ids"][0, ANCHORS]
    target: Any = SimpleNamespace(lm_head=drafter.lm_head)
    theirs = drafter.draft_model._sample_draft_tokens(target, states, anchor_ids[:, None])
    assert theirs.shape == (len(ANCHORS), SLOTS - 1)
    from_slot_1, _ = drafter.draft_model.markov_head.sample_block_tokens(
        drafter.lm_head(states[:, 1:]),
        first_prev_token_ids=anchor_ids,
        hidden_states=states[:, 1:],
    )
    assert torch.equal(theirs, from_slot_1)
    ours = roll(drafter, sample, ANCHORS, steps=1).endpoint[:, 1:]
    assert not torch.equal(theirs[:, 0], ours[:, 0])
