"""What a block must not see: the features from its anchor on, other blocks, other samples.

Each test changes one such thing violently and asks for the same states, logits or records. Each
has a counterpart that changes what the block does see, so that the test can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specforge_dstill.maths.root_schedule import RootSchedule
from specforge_dstill.maths.trajectory import Trajectory, state_at
from specforge_dstill.modes.block_step import BlockStep, Shares
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.records import LiveTeacher, StoredRecords
from specforge_dstill.modes.refine import Refiner
from specforge_dstill.modes.student import StudentDraw, StudentStrategy
from specforge_dstill.modes.teacher import teacher_strategy
from specforge_dstill.options import DstillOptions
from tests import tiny
from tests.modes.support import (
    FULL,
    MIXED,
    as_sample,
    collect_in_memory,
    logits_of,
    make_batch,
    make_drafter,
    roll,
    three_samples,
)

BACKENDS = ["sdpa", "eager"]
KINDS = [FULL, MIXED]
NOISE = 1e3
ANCHORS = torch.tensor([[8, 9, 14, 21], [6, 12, 13, 20], [7, 15, 26, 31]])
Blocks = tuple[Tensor, Tensor]


def features() -> Tensor:
    """[3, S, W] with zeros as padding, as a batch has them."""
    return make_batch(three_samples()).tensors["hidden_states"]


def partly_masked() -> Tensor:
    """Stage I's inputs: a mix of tokens and masks behind each anchor. [3, N, B]."""
    generator = torch.Generator().manual_seed(0)
    shape = (*ANCHORS.shape, tiny.BLOCK_SIZE)
    blocks = torch.randint(4, tiny.VOCAB, shape, generator=generator)
    masked = torch.rand(shape, generator=generator) < 0.5
    masked[..., 0] = False
    return blocks.masked_fill(masked, tiny.MASK_ID)


def rebuilt() -> Tensor:
    """Stage II's inputs: states of the teacher's trajectories. [3, N, B]."""
    teacher = make_drafter(seed=1)
    states = []
    for sample, anchors in zip(three_samples().values(), ANCHORS, strict=True):
        trajectory = roll(teacher, sample, anchors.clamp(max=sample["input_ids"].shape[1] - 2))
        t = torch.tensor([1, 2, 3, 1])
        states.append(
            state_at(trajectory.endpoint, trajectory.commit_pass, t, mask_token_id=tiny.MASK_ID)
        )
    return torch.stack(states)


def logits(drafter: BlockDrafter, blocks: Tensor, hidden_states: Tensor) -> Tensor:
    with torch.no_grad():
        return logits_of(drafter, drafter(blocks, ANCHORS, hidden_states))


def noise_like(states: Tensor) -> Tensor:
    return NOISE * torch.randn(states.shape, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("make_blocks", [partly_masked, rebuilt], ids=["teacher", "student"])
@pytest.mark.parametrize("layer_types", KINDS, ids=["full", "mixed"])
@pytest.mark.parametrize("backend", BACKENDS)
class TestForward:
    """The training forward of both stages, block by block."""

    def test_features_from_the_anchor_on(
        self, backend: str, layer_types: tuple[str, ...], make_blocks: Callable[[], Tensor]
    ) -> None:
        drafter = make_drafter(layer_types, backend=backend)
        blocks, clean = make_blocks(), features()
        before = logits(drafter, blocks, clean)
        for block in range(ANCHORS.shape[1]):
            noisy = clean.clone()
            for row, anchor in enumerate(ANCHORS[:, block].tolist()):
                noisy[row, anchor:] = noise_like(noisy[row, anchor:])
            after = logits(drafter, blocks, noisy)
            assert torch.equal(after[:, : block + 1], before[:, : block + 1])
            # Blocks whose anchor comes later do see the noise.
            later = slice(block + 1, None)
            assert (after[:, later] != before[:, later]).flatten(2).any(2).all()

    def test_the_last_feature_before_the_anchor_counts(
        self, backend: str, layer_types: tuple[str, ...], make_blocks: Callable[[], Tensor]
    ) -> None:
        drafter = make_drafter(layer_types, backend=backend)
        blocks, clean = make_blocks(), features()
        before = logits(drafter, blocks, clean)
        for block in range(ANCHORS.shape[1]):
            noisy = clean.clone()
            for row, anchor in enumerate(ANCHORS[:, block].tolist()):
                noisy[row, anchor - 1] = noise_like(noisy[row, anchor - 1])
            change = (logits(drafter, blocks, noisy) - before).abs().flatten(2).amax(2)
            assert (change[:, block] > 1e-3).all()

    def test_other_blocks(
        self, backend: str, layer_types: tuple[str, ...], make_blocks: Callable[[], Tensor]
    ) -> None:
        drafter = make_drafter(layer_types, backend=backend)
        blocks, clean = make_blocks(), features()
        before = logits(drafter, blocks, clean)
        for block in range(ANCHORS.shape[1]):
            changed = (blocks + 5) % tiny.VOCAB
            changed[:, block] = blocks[:, block]
            after = logits(drafter, changed, clean)
            assert torch.equal(after[:, block], before[:, block])
            assert (after - before).abs().flatten(2).amax(-1).gt(1e-3).sum() == 3 * 3

    def test_other_samples_and_the_padding(
        self, backend: str, layer_types: tuple[str, ...], make_blocks: Callable[[], Tensor]
    ) -> None:
        drafter = make_drafter(layer_types, backend=backend)
        blocks, clean = make_blocks(), features()
        before = logits(drafter, blocks, clean)
        lengths = [sample["input_ids"].shape[1] for sample in three_samples().values()]
        for row, length in enumerate(lengths):
            noisy, changed = noise_like(clean), (blocks + 5) % tiny.VOCAB
            noisy[row, :length], changed[row] = clean[row, :length], blocks[row]
            inside = ANCHORS[row] < length
            after = logits(drafter, changed, noisy)
            assert torch.equal(after[row, inside], before[row, inside])
            # Neither does it matter whether there is any padding or company at all. Another
            # length is another order of summation.
            with torch.no_grad():
                alone = drafter(
                    blocks[row : row + 1, inside],
                    ANCHORS[row : row + 1, inside],
                    clean[row : row + 1, :length],
                )
            torch.testing.assert_close(
                logits_of(drafter, alone)[0], before[row, inside], atol=2e-5, rtol=1e-5
            )


def same(one: Trajectory, other: Trajectory, *, block: int) -> bool:
    names = ("endpoint", "commit_pass", "top_ids", "top_logp")
    return all(torch.equal(getattr(one, n)[block], getattr(other, n)[block]) for n in names)


@pytest.mark.parametrize("layer_types", KINDS, ids=["full", "mixed"])
@pytest.mark.parametrize("every_pass", [False, True])
@pytest.mark.parametrize("head", [None, *tiny.HEADS])
class TestRollout:
    """Records, all passes of them."""

    def test_features_from_the_anchor_on(
        self, layer_types: tuple[str, ...], every_pass: bool, head: str | None
    ) -> None:
        drafter, sample = make_drafter(layer_types, head=head), three_samples()["data/a.ckpt"]
        anchors = ANCHORS[0]
        before = roll(drafter, sample, anchors, every_pass=every_pass)
        for block, anchor in enumerate(anchors.tolist()):
            for first, unseen in ((anchor, True), (anchor - 1, False)):
                noisy = {**sample, "hidden_states": sample["hidden_states"].clone()}
                noisy["hidden_states"][:, first:] = noise_like(noisy["hidden_states"][:, first:])
                after = roll(drafter, noisy, anchors, every_pass=every_pass)
                assert same(after, before, block=block) == unseen

    def test_other_blocks(
        self, layer_types: tuple[str, ...], every_pass: bool, head: str | None
    ) -> None:
        drafter, sample = make_drafter(layer_types, head=head), three_samples()["data/a.ckpt"]
        anchors = ANCHORS[0]
        before = roll(drafter, sample, anchors, every_pass=every_pass)
        for block, anchor in enumerate(anchors.tolist()):
            others = {**sample, "input_ids": (sample["input_ids"] + 5) % tiny.VOCAB}
            others["input_ids"][0, anchor] = sample["input_ids"][0, anchor]
            after = roll(drafter, others, anchors, every_pass=every_pass)
            assert same(after, before, block=block)
            assert not any(same(after, before, block=b) for b in range(4) if b != block)


def student_strategy_of(step: BlockStep, teacher: BlockDrafter, *, online: bool) -> StudentStrategy:
    """A student of a store, or of a live teacher; its own random weights are not the teacher's."""
    options = step.options
    draw = StudentDraw(step.drafter.shape, tiny.MASK_ID, 4, options.student)
    store: Any = collect_in_memory(teacher, three_samples())
    live = LiveTeacher(Refiner(teacher, options, seed=0), num_anchors=4, teacher_hash="")
    return StudentStrategy(
        step,
        draw,
        records=live if online else StoredRecords(store),
        schedule=RootSchedule(),
        seed=0,
    )


@pytest.mark.parametrize("stage", ["teacher", "student", "online student"])
@pytest.mark.parametrize("layer_types", KINDS, ids=["full", "mixed"])
@pytest.mark.parametrize("head", [None, *tiny.HEADS])
def test_a_whole_step_reads_no_padding_and_nothing_from_its_last_anchor_on(
    stage: str, layer_types: tuple[str, ...], head: str | None
) -> None:
    """The strategies themselves, in both directions: the same loss, and another one."""
    shares = Shares(0.1, 0.9, 1.0) if head else Shares()
    step = BlockStep(make_drafter(layer_types, head=head), DstillOptions(steps=3), shares)
    batch = make_batch(three_samples())
    clean = batch.tensors["hidden_states"].clone()
    samples = [as_sample(*x) for x in three_samples().items()]
    if stage == "teacher":
        strategy: Any = teacher_strategy(step, num_anchors=4, seed=0)
        drawn = strategy._draw_batch(samples, visit=0)
    else:
        teacher = make_drafter(layer_types, head=head, seed=1)
        strategy = student_strategy_of(step, teacher, online=stage == "online student")
        drawn = strategy._draw_batch(samples, clean, p_root=0.85, visit=0)
    before = strategy.forward_loss(batch).loss_terms[0].item()
    last = [int(blocks.anchors.max()) for blocks in drawn]
    for row, anchor in enumerate(last):
        batch.tensors["hidden_states"][row, anchor:] = noise_like(clean[row, anchor:])
    assert strategy.forward_loss(batch).loss_terms[0].item() == before
    supervised = [blocks.supervised[-1].any() for blocks in drawn]
    row = next(row for row, any_row in enumerate(supervised) if any_row)
    batch.tensors["hidden_states"][row, last[row] - 1] = noise_like(clean[row, last[row] - 1])
    assert abs(strategy.forward_loss(batch).loss_terms[0].item() - before) > 1e-4
