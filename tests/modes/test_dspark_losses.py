"""Both stages' losses for DSpark drafters: SpecForge's own objective, and an eager one.

The reference forms all logits, and leaves gradients to autograd.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from specforge.algorithms.common.dflash_family_model import OnlineDSparkModel
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from specforge_dstill.data.feature_files import HIDDEN, LAST
from specforge_dstill.maths.distillation_loss import Retained, row_loss
from specforge_dstill.maths.teacher_loss import position_log_weights
from specforge_dstill.modes.block_batch import SampleBlocks, stack_blocks
from specforge_dstill.modes.block_step import BlockStep, Shares
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.student import StudentDraw
from specforge_dstill.modes.teacher import TeacherDraw
from specforge_dstill.option_sections import StudentOptions
from specforge_dstill.options import DstillOptions
from tests import tiny
from tests.modes.support import (
    as_sample,
    collect_in_memory,
    make_drafter,
    make_sample,
    roll,
)

CLOSE: dict[str, float] = {"atol": 1e-5, "rtol": 1e-4}
SHARES = Shares(likelihood=0.1, l1=0.9, confidence=0.7)


def gradients(loss: Tensor, drafter: BlockDrafter) -> dict[str, Tensor]:
    named = dict(drafter.draft_model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {n: g for n, g in zip(named, found, strict=True) if g is not None}


def assert_same_gradients(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], **CLOSE, msg=name)


@pytest.mark.parametrize("gamma", [None, 4.0])
@pytest.mark.parametrize("head", tiny.HEADS)
def test_stage_1_at_the_root_is_specforges_objective(head: str, gamma: float | None) -> None:
    """Everything masked, every anchor, weights pooled over tokens: loss and all gradients."""
    drafter, sample = make_drafter(head=head), make_sample(30, seed=2)
    theirs = OnlineDSparkModel(
        drafter.draft_model,
        drafter.lm_head,
        drafter.embed_tokens,
        mask_token_id=tiny.MASK_ID,
        block_size=tiny.BLOCK_SIZE,
        attention_backend="sdpa",
        num_anchors=10**6,
        loss_decay_gamma=gamma,
        dspark_ce_loss_alpha=SHARES.likelihood,
        dspark_l1_loss_alpha=SHARES.l1,
        dspark_confidence_head_alpha=SHARES.confidence,
    )
    drafter.draft_model.config._attn_implementation = "sdpa"
    expected, _, metrics = theirs(
        sample["input_ids"], sample[HIDDEN], sample["loss_mask"], sample[LAST]
    )
    assert_same = gradients(expected, drafter)

    drafter = make_drafter(head=head)
    draw = TeacherDraw(drafter.shape, tiny.MASK_ID, (0.0,), 10**6, DstillOptions().teacher)
    drawn = draw(as_sample("", sample), torch.Generator().manual_seed(0), root=True)
    decay = position_log_weights(drafter.shape.positions, gamma=gamma).exp().float()
    drawn = replace(drawn, weights=drawn.supervised * decay)
    step = BlockStep(drafter, DstillOptions(rows_per_tile=7), SHARES)
    _, loss = step([drawn], sample)
    total = drawn.weights.sum()
    torch.testing.assert_close(loss.numerator / total, expected, **CLOSE)
    assert_same_gradients(gradients(loss.numerator / total, drafter), assert_same)
    ours = loss.target_metrics(drawn.weights[drawn.supervised])
    for name, other in (("l1", "l1_loss"), ("confidence", "confidence_loss")):
        for one, two in zip(ours[name], metrics["ratio_metrics"][other], strict=True):
            torch.testing.assert_close(one, two, **CLOSE)


def eager(
    drafter: BlockDrafter, drawn: SampleBlocks, sample: dict[str, Tensor], *, alpha: float
) -> Tensor:
    """The numerator over one sample's blocks, position by position."""
    draft = drafter.draft_model
    states = drafter(drawn.inputs[None], drawn.anchors[None], sample[HIDDEN])[0, :, 1:]
    before = drawn.targets[:, :-1]
    logits = draft.apply_logits_head(
        drafter.lm_head(states), prev_token_ids=before, hidden_states=states
    )
    confidence = draft.predict_confidence(states, prev_token_ids=before)
    total = states.sum() * 0
    for block, position in drawn.supervised.nonzero().tolist():
        row, here = logits[block, position - 1], (block, position, None)
        target = drawn.targets[block, position]
        loss = cross_entropy(row[None], target[None])
        if alpha:
            retained = Retained(drawn.top_ids[here], drawn.top_logp[here])
            # The KL and its gradient are row_loss's, checked elsewhere.
            alone = row.detach()[None].clone()
            found = row_loss(alone, target[None], retained=retained, alpha=alpha)
            slope = (found.gradient[0] * row).sum()
            value = (1 - alpha) * found.nll + alpha * found.kl
            loss = slope - slope.detach() + value.squeeze()
        at = int(drawn.anchors[block]) + position - 1
        q = drafter.lm_head(sample[LAST][0, at]).softmax(-1)
        l1 = (row.softmax(-1) - q).abs().sum()
        accepted = (1 - l1.detach() / 2).clamp(0, 1)
        sure = binary_cross_entropy_with_logits(confidence[block, position - 1], accepted)
        # After a mismatch the cache's distribution is of another context than the block's.
        same = torch.equal(drawn.targets[block, :position], drawn.reference[block, :position])
        part = SHARES.likelihood * loss + same * (SHARES.l1 * l1 + SHARES.confidence * sure)
        total = total + drawn.weights[block, position] * part
    return total


def teacher_blocks(drafter: BlockDrafter, sample: dict[str, Tensor]) -> SampleBlocks:
    draw = TeacherDraw(drafter.shape, tiny.MASK_ID, (0.3, 0.6), 6, DstillOptions().teacher)
    return draw(as_sample("", sample), torch.Generator().manual_seed(3))


def student_blocks(drafter: BlockDrafter, sample: dict[str, Tensor]) -> SampleBlocks:
    teacher = make_drafter(head=tiny.HEADS[0], seed=1)
    store: Any = collect_in_memory(teacher, {"a": sample})
    options = StudentOptions(first_mismatch_weight=0.4)
    draw = StudentDraw(drafter.shape, tiny.MASK_ID, 6, options)
    record = store.record_for("a", sample["input_ids"][0])
    return draw(as_sample("a", sample), record, torch.Generator().manual_seed(3), p_root=0.2)


@pytest.mark.parametrize(("blocks_of", "alpha"), [(teacher_blocks, 0.0), (student_blocks, 0.2)])
@pytest.mark.parametrize("head", tiny.HEADS)
def test_losses_of_partly_masked_blocks(head: str, blocks_of: Any, alpha: float) -> None:
    sample = make_sample(30, seed=2)
    drafter = make_drafter(head=head)
    drawn = blocks_of(drafter, sample)
    step = BlockStep(drafter, DstillOptions(rows_per_tile=5), SHARES)
    _, loss = step([drawn], sample, alpha=alpha)
    expected = eager(drafter, drawn, sample, alpha=alpha)
    torch.testing.assert_close(loss.numerator, expected, **CLOSE)
    assert_same_gradients(gradients(loss.numerator, drafter), gradients(expected, drafter))


def test_the_students_blocks_leave_the_data() -> None:
    """So that the test above has rows of both kinds: in the data's context and out of it."""
    sample = make_sample(30, seed=2)
    drawn = student_blocks(make_drafter(head=tiny.HEADS[0]), sample)
    blocks = stack_blocks([drawn], mask_token_id=tiny.MASK_ID, device=torch.device("cpu"))
    inside = blocks.in_context[blocks.supervised]
    assert inside.any()
    assert not inside.all()
    assert blocks.in_context[..., 1].all(), "before the first position there is the anchor alone"


def test_the_position_without_a_slot_is_always_to_be_predicted() -> None:
    """Whatever was drawn or committed: the drafter does not read it, so it is supervised."""
    drafter, sample = make_drafter(head="none"), make_sample(40, seed=2, scored=slice(6, 36))
    last = drafter.shape.positions - 1
    for blocks in (teacher_blocks(drafter, sample), student_blocks(drafter, sample)):
        assert blocks.inputs.shape[1] == last + 1
        assert torch.equal(blocks.supervised[:, last], blocks.scored[:, last])
        assert not blocks.supervised[:, 1:last].all()


@pytest.mark.parametrize("head", tiny.HEADS)
def test_half_precision_comes_close(head: str) -> None:
    """bfloat16 keeps 8 bits; losses are summed in float32."""
    sample, losses = make_sample(30, seed=2), []
    for dtype in (torch.float32, torch.bfloat16):
        drafter = make_drafter(head=head).to(dtype)
        step = BlockStep(drafter, DstillOptions(), SHARES)
        _, loss = step([teacher_blocks(drafter, sample)], sample)
        assert loss.numerator.dtype == torch.float32
        assert all(g.isfinite().all() for g in gradients(loss.numerator, drafter).values())
        features = {**sample, HIDDEN: sample[HIDDEN].to(dtype)}
        assert roll(drafter, features, torch.tensor([8])).endpoint.shape == (1, 9)
        losses.append(loss.numerator.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
