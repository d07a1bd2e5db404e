"""The drafter: every attention backend gives the same states, and so does SpecForge's own path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specforge.algorithms.common.dflash_family_model import (
    OnlineDFlashModel,
    create_dflash_sdpa_mask,
)
from torch import Tensor, nn

from specforge_dstill.maths.trajectory import Trajectory
from specforge_dstill.modes import assembly
from specforge_dstill.modes.block_batch import SampleBlocks
from specforge_dstill.modes.block_step import BlockStep
from specforge_dstill.modes.context_cache import ContextCache
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.replay import PassesDrafter
from specforge_dstill.options import DstillOptions
from tests import tiny
from tests.modes.support import FULL, MIXED, WIDTH, make_draft, make_drafter, make_sample, roll

S = 25
ANCHORS = torch.tensor([[9, 0, 24, 9, 3], [1, 20, 2, 16, 0]])
SLIDING = ("sliding_attention", "sliding_attention")
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def inputs(seed: int = 5) -> tuple[Tensor, Tensor]:
    """Blocks [2, 5, B], some positions masked, and features [2, S, W]."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(4, tiny.VOCAB, (2, 5, tiny.BLOCK_SIZE), generator=generator)
    masked = torch.rand(blocks.shape, generator=generator) < 0.6
    masked[..., 0] = False
    blocks[masked] = tiny.MASK_ID
    return blocks, torch.randn(2, S, WIDTH, generator=generator)


def states_and_gradients(drafter: BlockDrafter) -> tuple[Tensor, dict[str, Tensor]]:
    blocks, features = inputs()
    features.requires_grad_()
    states = drafter(blocks, ANCHORS, features)
    direction = torch.randn(states.shape, generator=torch.Generator().manual_seed(2))
    (states * direction).sum().backward()
    gradients = {name: p.grad for name, p in drafter.named_parameters() if p.requires_grad}
    return states.detach(), {**gradients, "features": features.grad}


@pytest.mark.parametrize("layer_types", [FULL, MIXED, SLIDING])
@pytest.mark.parametrize("group", [1, 2, 64])
def test_grouped_and_eager_agree_with_gradients(layer_types: tuple[str, ...], group: int) -> None:
    states, gradients = states_and_gradients(make_drafter(layer_types, blocks_per_group=group))
    expected, theirs = states_and_gradients(make_drafter(layer_types, backend="eager"))
    torch.testing.assert_close(states, expected, **TOLERANCE)
    assert gradients.keys() == theirs.keys()
    for name, gradient in gradients.items():
        # Sums over a few hundred positions: their float32 error grows with their size.
        scale = theirs[name].abs().max()
        torch.testing.assert_close(gradient / scale, theirs[name] / scale, msg=name, **TOLERANCE)


def specforges_states(drafter: BlockDrafter) -> Tensor:
    """The same pass through SpecForge's model with SpecForge's masks and plain SDPA."""
    blocks, features = inputs()
    draft = drafter.draft_model
    draft.config._attn_implementation = "sdpa"
    keep = torch.ones_like(ANCHORS, dtype=torch.bool)
    arguments = (ANCHORS, keep, S, tiny.BLOCK_SIZE, "cpu")
    masks = {
        "full_attention": create_dflash_sdpa_mask(*arguments),
        "sliding_attention": create_dflash_sdpa_mask(*arguments, sliding_window=6),
    }
    own = ANCHORS[:, :, None] + torch.arange(tiny.BLOCK_SIZE)
    positions = torch.cat([torch.arange(S).expand(2, -1), own.flatten(1)], dim=1)
    states = draft(
        position_ids=positions,
        attention_mask=masks,
        noise_embedding=drafter.embed_tokens(blocks.flatten(1)),
        target_hidden=features,
    )
    return states.reshape(2, 5, tiny.BLOCK_SIZE, -1)


@pytest.mark.parametrize("layer_types", [FULL, MIXED, SLIDING])
def test_the_states_are_those_of_specforges_own_path(layer_types: tuple[str, ...]) -> None:
    drafter = make_drafter(layer_types, blocks_per_group=2)
    blocks, features = inputs()
    with torch.no_grad():
        found = drafter(blocks, ANCHORS, features)
        torch.testing.assert_close(found, specforges_states(drafter), **TOLERANCE)


@pytest.mark.parametrize("layer_types", [FULL, MIXED])
def test_at_the_root_it_is_specforges_training_model(layer_types: tuple[str, ...]) -> None:
    """OnlineDFlashModel's own anchors, root blocks, positions and masks, end to end."""
    drafter = make_drafter(layer_types)
    sample = make_sample(S, seed=3)
    theirs = OnlineDFlashModel(
        make_drafter(layer_types).draft_model,
        drafter.lm_head,
        drafter.embed_tokens,
        tiny.MASK_ID,
        block_size=tiny.BLOCK_SIZE,
        attention_backend="sdpa",
        num_anchors=6,
    )
    theirs.draft_model.config._attn_implementation = "sdpa"
    with torch.no_grad():
        anchors, keep, states = theirs._forward_draft_blocks(
            sample["input_ids"], sample["hidden_states"], sample["loss_mask"]
        )
        assert keep.all()
        blocks = torch.full((*anchors.shape, tiny.BLOCK_SIZE), tiny.MASK_ID)
        blocks[..., 0] = sample["input_ids"].gather(1, anchors)
        found = drafter(blocks, anchors, sample["hidden_states"])
    torch.testing.assert_close(found.flatten(1, 2), states, **TOLERANCE)


@pytest.mark.parametrize(
    ("layer_types", "changes", "same_as"),
    [
        (FULL, {"is_causal": True}, "lower"),
        (SLIDING, {}, "lower"),
        (SLIDING, {"is_causal": False}, "square"),
        (FULL, {}, "square"),
        (FULL, {"is_causal": None}, "square"),
    ],
)
def test_is_causal_of_the_config_decides_within_a_block(
    layer_types: tuple[str, ...], changes: dict[str, Any], same_as: str
) -> None:
    """Changing the last token of a block reaches its earlier positions, or does not."""
    drafter = make_drafter(layer_types, **changes)
    blocks, features = inputs()
    changed = blocks.clone()
    changed[..., -1] = (blocks[..., -1] + 7) % tiny.VOCAB
    with torch.no_grad():
        before = drafter(blocks, ANCHORS, features)[..., :-1, :]
        after = drafter(changed, ANCHORS, features)[..., :-1, :]
    assert torch.equal(before, after) == (same_as == "lower")


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("layer_types", [FULL, MIXED])
def test_passes_over_a_kept_context_equal_fresh_ones(
    layer_types: tuple[str, ...], backend: str
) -> None:
    drafter = make_drafter(layer_types, backend=backend)
    context = ContextCache()
    with torch.no_grad():
        for seed in (5, 6, 7):
            blocks, _ = inputs(seed)
            _, features = inputs()
            fresh = drafter(blocks, ANCHORS, features)
            kept = drafter(blocks, ANCHORS, features, context)
            torch.testing.assert_close(kept, fresh, **TOLERANCE)
            assert context.is_filled


def test_a_kept_context_serves_other_anchors_and_fewer_samples() -> None:
    drafter = make_drafter(MIXED)
    context = ContextCache()
    blocks, features = inputs()
    with torch.no_grad():
        drafter(blocks, ANCHORS, features, context)
        rows = torch.tensor([1])
        context.select(rows)
        anchors = torch.tensor([[4, 22]])
        kept = drafter(blocks[rows, :2], anchors, features[rows], context)
        fresh = drafter(blocks[rows, :2], anchors, features[rows])
    torch.testing.assert_close(kept, fresh, **TOLERANCE)


def equal(one: Trajectory, other: Trajectory) -> bool:
    return torch.equal(one.endpoint, other.endpoint) and torch.equal(
        one.commit_pass, other.commit_pass
    )


def test_a_rollout_in_parts_is_the_same_rollout() -> None:
    from specforge_dstill.maths.rollout import CommitRule
    from specforge_dstill.modes.drafter import rollout_blocks

    drafter, sample = make_drafter(), make_sample(40, seed=4)
    anchors = torch.arange(6, 38)
    whole = roll(drafter, sample, anchors)
    parts = rollout_blocks(
        drafter,
        sample["hidden_states"][0],
        anchors,
        sample["input_ids"][0][anchors],
        steps=3,
        rule=CommitRule(tiny.MASK_ID, top_k=5),
        blocks_per_pass=5,
    )
    assert equal(whole, parts)
    torch.testing.assert_close(whole.top_logp, parts.top_logp, **TOLERANCE)


def test_a_rollout_of_no_blocks_is_empty() -> None:
    drafter, sample = make_drafter(), make_sample(20)
    trajectory = roll(drafter, sample, torch.zeros(0, dtype=torch.int64))
    assert trajectory.endpoint.shape == (0, tiny.BLOCK_SIZE)
    assert trajectory.top_ids.shape == (0, 1, tiny.BLOCK_SIZE - 1, 5)


@pytest.mark.parametrize("steps", [1, 3])
def test_replay_drafts_what_the_rollout_commits(steps: int) -> None:
    """A batch of contexts, one block each, over several rounds, rows dropped in between."""
    drafter = make_drafter(MIXED)
    samples = [make_sample(S, seed=seed) for seed in (1, 2, 3)]
    session = PassesDrafter(drafter, steps).begin(
        torch.cat([sample["hidden_states"] for sample in samples])
    )
    kept = torch.tensor([0, 1, 2])
    for anchors in (torch.tensor([8, 9, 7]), torch.tensor([12, 11]), torch.tensor([20, 14])):
        if len(anchors) < len(kept):
            kept = kept[torch.tensor([2, 0])]
            session.keep(torch.tensor([2, 0]))
        chosen = [samples[int(row)] for row in kept]
        ids = torch.stack(
            [sample["input_ids"][0, at] for sample, at in zip(chosen, anchors, strict=True)]
        )
        found = session.draft(anchors, ids)
        for row, sample in enumerate(chosen):
            expected = roll(drafter, sample, anchors[row : row + 1], steps=steps, top_k=0)
            assert torch.equal(found[row], expected.endpoint[0, 1:])


def test_capped_logits_and_a_bias_reach_rollout_and_loss() -> None:
    """The log-probability that a rollout records is the one that the loss works with."""
    drafter = make_drafter()
    drafter.logit_softcap = 0.7
    drafter.lm_head.bias = nn.Parameter(torch.randn(tiny.VOCAB), requires_grad=False)
    sample = make_sample(S, seed=3)
    anchors = torch.tensor([7, 12, 20])
    trajectory = roll(drafter, sample, anchors, steps=1)
    blocks = torch.full((1, 3, tiny.BLOCK_SIZE), tiny.MASK_ID)
    blocks[0, :, 0] = sample["input_ids"][0, anchors]
    states = drafter(blocks, anchors[None], sample["hidden_states"])[0, :, 1:].flatten(0, 1)
    capped = 0.7 * torch.tanh(
        nn.functional.linear(states, drafter.lm_head.weight, drafter.lm_head.bias) / 0.7
    )
    expected = capped.log_softmax(dim=-1).gather(1, trajectory.endpoint[:, 1:].reshape(-1, 1))
    recorded = trajectory.top_logp[:, 0, :, :1].reshape(-1, 1)
    torch.testing.assert_close(recorded, expected.detach(), **TOLERANCE)
    everything = torch.ones(3, tiny.BLOCK_SIZE, dtype=torch.bool)
    everything[:, 0] = False
    drawn = SampleBlocks(
        anchors=anchors,
        inputs=blocks[0],
        targets=trajectory.endpoint,
        reference=trajectory.endpoint,
        scored=everything,
        supervised=everything,
        root=torch.ones(3, dtype=torch.bool),
        weights=everything.float(),
        top_ids=torch.zeros(3, tiny.BLOCK_SIZE, 0, dtype=torch.int64),
        top_logp=torch.zeros(3, tiny.BLOCK_SIZE, 0),
    )
    _, loss = BlockStep(drafter, DstillOptions(steps=1))([drawn], sample)
    torch.testing.assert_close(-loss.nll[:, None], recorded, **TOLERANCE)
    assert torch.equal(loss.predicted, trajectory.endpoint[:, 1:].flatten())


def test_the_targets_parts_go_to_the_very_device_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(*_: Any, device: str, **__: Any) -> None:
        raise LookupError(device)

    monkeypatch.setattr(assembly.TargetEmbeddingsAndHead, "from_pretrained", look)
    model = SimpleNamespace(
        target_model_path="t",
        embedding_key=None,
        lm_head_key=None,
        cache_dir=None,
        trust_remote_code=False,
    )
    with pytest.raises(LookupError, match="cuda:1"):
        assembly.beside_target(make_draft(), model, mask_token_id=1, device=torch.device("cuda:1"))
