"""The drafter in decoding: the blocks of a whole context, each position projected once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from specforge_dstill.evaluation.rules import Draft
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.modes.decoding import DecodingDrafter
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.growing_context import GrowingContext
from tests import tiny
from tests.modes.support import FULL, MIXED, make_drafter, make_sample, roll

# How the context grows: a prompt, then what rounds accepted. It outgrows its first memory.
GROWTH = (9, 1, 3, tiny.BLOCK_SIZE, 240, 2, 60)


@pytest.mark.parametrize(
    ("layer_types", "told"), [(FULL, {}), (MIXED, {}), (MIXED, {"is_causal": False})]
)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("head", [None, *tiny.HEADS])
def test_a_growing_context_gives_the_blocks_of_a_whole_one(
    layer_types: tuple[str, ...], told: dict[str, bool], steps: int, head: str | None
) -> None:
    drafter = make_drafter(layer_types, head=head, **told)
    sample = make_sample(sum(GROWTH) + 1, seed=4)
    session = DecodingDrafter(drafter, steps).begin()
    at = 0
    for count in GROWTH:
        states = sample["hidden_states"][0, at : at + count]
        at += count
        draft = session.draft(states, sample["input_ids"][0, at : at + 1], None)
        expected = roll(drafter, sample, torch.tensor([at]), steps=steps, top_k=0)
        assert torch.equal(draft.tokens, expected.endpoint[0, 1:])
        assert draft.probabilities is None
    assert drafter.draft_model.config._attn_implementation != "sdpa", "put back for other uses"


@pytest.mark.parametrize("steps", [1, 3])
def test_each_position_is_projected_once(steps: int) -> None:
    """Of K passes, too; and the head reads masked positions only."""
    drafter, sample = make_drafter(), make_sample(40)
    projected, blocks = counted(drafter.draft_model.fc), counted(drafter.draft_model.norm)
    session = DecodingDrafter(drafter, steps).begin()
    at = 0
    for count in (12, 4, 1):
        session.draft(
            sample["hidden_states"][0, at : at + count],
            sample["input_ids"][0, at + count : at + count + 1],
            None,
        )
        at += count
    assert [rows for rows in projected if rows] == [12, 4, 1]
    assert blocks == [tiny.BLOCK_SIZE] * 3 * steps


def counted(module: nn.Module) -> list[int]:
    """The rows that the module is given, call by call."""
    rows = list[int]()
    module.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[1]))
    return rows


def one_draft(
    drafter: BlockDrafter, sampling: Sampling | None, seed: int = 0
) -> tuple[Tensor, Tensor | None]:
    sample = make_sample(20)
    session = DecodingDrafter(drafter, 1, sampling).begin()
    found = session.draft(
        sample["hidden_states"][0, :19],
        sample["input_ids"][0, 19:],
        torch.Generator().manual_seed(seed),
    )
    return found.tokens, found.probabilities


def test_a_sampled_draft_tells_what_it_was_drawn_from() -> None:
    drafter = make_drafter()
    warm = Sampling(temperature=1.5)
    probabilities = one_draft(drafter, warm)[1]
    assert probabilities is not None
    torch.testing.assert_close(probabilities.sum(1), torch.ones(tiny.BLOCK_SIZE - 1))
    assert not probabilities[:, tiny.MASK_ID].any(), "the mask token is no prediction"
    many = torch.stack([one_draft(drafter, warm, seed)[0] for seed in range(300)])
    for position, row in enumerate(probabilities):
        share = torch.bincount(many[:, position], minlength=tiny.VOCAB) / len(many)
        torch.testing.assert_close(share, row, atol=0.12, rtol=0)
    greedy, none = one_draft(drafter, None)
    assert none is None
    assert torch.equal(greedy, probabilities.argmax(1))
    assert torch.equal(one_draft(drafter, Sampling())[0], greedy)


def test_a_draft_is_not_sampled_without_a_generator() -> None:
    sample = make_sample(20)
    session = DecodingDrafter(make_drafter(), 1, Sampling(temperature=1.0)).begin()
    with pytest.raises(ValueError, match="needs a generator"):
        session.draft(sample["hidden_states"][0, :19], sample["input_ids"][0, 19:], None)


def test_drafts_of_several_passes_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="which 3 passes do not give"):
        DecodingDrafter(make_drafter(), 3, Sampling(temperature=1.0))


def test_memory_is_copied_only_when_it_doubles() -> None:
    context = GrowingContext()
    pieces = list[Tensor]()
    places = set[int]()
    for index in range(600):
        new = torch.full((1, 2, 3, 4), float(index))
        keys, values = context.update(new, -new, layer_idx=0)
        # One position is kept, two are a block's and written over.
        context.advance(1)
        pieces.append(new[:, :, :1])
        assert torch.equal(keys, torch.cat([*pieces, new[:, :, 1:]], dim=2))
        assert torch.equal(values, -keys)
        places.add(keys.data_ptr())
    assert context.length == 600
    assert len(places) == 3


@pytest.mark.parametrize("head", tiny.HEADS)
def test_a_sampled_chain_tells_what_each_token_was_drawn_from(head: str) -> None:
    """The conditional of each position, given the tokens that were drawn before it."""
    drafter, sample = make_drafter(head=head), make_sample(20)
    warm = Sampling(temperature=1.5)
    tokens, probabilities = one_draft(drafter, warm)
    assert probabilities is not None
    assert len(tokens) == tiny.BLOCK_SIZE == len(probabilities)
    block = torch.cat([sample["input_ids"][0, 19:], tokens])
    root = torch.full((1, 1, len(block)), tiny.MASK_ID)
    root[..., 0] = block[0]
    with torch.no_grad():
        states = drafter(root, torch.tensor([[19]]), sample["hidden_states"])[0, 0, 1:]
        logits = drafter.draft_model.apply_logits_head(
            drafter.lm_head(states)[None],
            prev_token_ids=block[None, :-1],
            hidden_states=states[None],
        )[0]
    logits[:, tiny.MASK_ID] = -torch.inf
    torch.testing.assert_close(probabilities, warm.probabilities(logits), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sampling", [None, Sampling(temperature=1.5)])
def test_a_least_confidence_cuts_the_draft_where_the_drafter_doubts(
    sampling: Sampling | None,
) -> None:
    drafter, sample = make_drafter(head="vanilla"), make_sample(20)

    def drafted(least: float | None) -> Draft:
        session = DecodingDrafter(drafter, 1, sampling, least).begin()
        known, token = sample["hidden_states"][0, :19], sample["input_ids"][0, 19:]
        return session.draft(known, token, torch.Generator().manual_seed(0))

    whole = drafted(None)
    root = torch.full((1, 1, len(whole.tokens) + 1), tiny.MASK_ID)
    root[..., 0] = sample["input_ids"][0, 19]
    with torch.no_grad():
        states = drafter(root, torch.tensor([[19]]), sample["hidden_states"])[0, :, 1:]
        before = torch.cat([root[0, 0, :1], whole.tokens[:-1]])[None]
        sure = drafter.draft_model.predict_confidence(states, prev_token_ids=before)
    reached = sure.sigmoid().cumprod(1)[0].tolist()
    assert len(drafted(0.0).tokens) == len(whole.tokens)
    assert len(drafted(1.0).tokens) == 0
    for count in range(1, len(reached)):
        least = (reached[count - 1] + reached[count]) / 2
        cut = drafted(least)
        assert torch.equal(cut.tokens, whole.tokens[:count])
        if cut.probabilities is not None:
            assert whole.probabilities is not None
            assert torch.equal(cut.probabilities, whole.probabilities[:count])


def test_a_least_confidence_needs_one_pass_and_a_head_that_tells() -> None:
    with pytest.raises(ValueError, match="of one pass, not of 3"):
        DecodingDrafter(make_drafter(head="none"), 3, min_confidence=0.5)
    with pytest.raises(ValueError, match="with a confidence head"):
        DecodingDrafter(make_drafter(), 1, min_confidence=0.5)
