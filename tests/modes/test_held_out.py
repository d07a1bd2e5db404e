"""Block acceptance on held-out samples, against a plain loop over single blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from specforge.launch import _distributed_sampler_indices
from specforge.runtime.contracts import TrainBatch
from torch import Tensor

from specforge_dstill.errors import UserError
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.held_out import HeldOutBlocks
from specforge_dstill.modes.replay import PassesDrafter
from tests.modes.support import all_anchors, make_batch, make_drafter, make_sample

PASSES = (1, 3, 7)
LENGTHS = (30, 23, 34, 27, 41)


def scorer(drafter: BlockDrafter, *, anchors: int = 5) -> HeldOutBlocks:
    return HeldOutBlocks(drafter.eval(), PASSES, anchors_per_sample=anchors, rows_per_tile=16)


def samples_of_few_tokens() -> dict[str, dict[str, Tensor]]:
    """Of three tokens only."""
    samples = {f"{i}.ckpt": make_sample(size, seed=i) for i, size in enumerate(LENGTHS)}
    for sample in samples.values():
        sample["input_ids"] %= 3
    return samples


def by_a_loop(drafter: BlockDrafter, steps: int, sample: dict[str, Tensor]) -> tuple[int, int]:
    """Sum and number of acceptance lengths, each block drafted alone by replay's session, and
    prefixes counted by hand."""
    ids, mask = sample["input_ids"][0], sample["loss_mask"][0]
    last = int(mask.nonzero().max())
    lengths = []
    for anchor in all_anchors(sample).tolist():
        at = torch.tensor([anchor])
        session = PassesDrafter(drafter, steps).begin(sample["hidden_states"])
        drafted = session.draft(at, ids[at])[0].tolist()
        inside = [p for p in range(anchor + 1, anchor + 1 + len(drafted)) if p <= last]
        wrong = [p for p in inside if drafted[p - anchor - 1] != ids[p]]
        lengths.append((wrong[0] if wrong else inside[-1] + 1) - anchor)
    return sum(lengths), len(lengths)


@pytest.mark.parametrize("constant", [True, False])
def test_a_loop_over_blocks_counts_the_same(constant: bool) -> None:
    """A drafter of one token meets every end of an answer, a random one varies its drafts."""
    drafter = make_drafter()
    with torch.no_grad():
        drafter.lm_head.weight[3:] *= 0.1
        if constant:
            drafter.lm_head.weight[1] = -drafter.lm_head.weight[0]
            drafter.lm_head.weight[2:] = 0
    blocks = scorer(drafter, anchors=64)
    accepted = 0.0
    for sample in list(samples_of_few_tokens().values())[:2]:
        ids, mask = sample["input_ids"][0], sample["loss_mask"][0]
        mask[-4:] = 0  # four tokens of another turn follow, which a drafter of one token meets, too
        if constant:
            ids[14:] = 1
        found = blocks.sums(ids, mask, sample["hidden_states"][0])
        assert [tuple(row) for row in found.tolist()] == [
            by_a_loop(drafter, steps, sample) for steps in PASSES
        ]
        accepted += float((found[:, 0] - found[:, 1]).sum())
    assert accepted > 0, "no drafted token was accepted: nothing is tested"


def test_padding_is_not_scored() -> None:
    """A sample gives the same sums alone and padded in a batch."""
    samples = samples_of_few_tokens()
    blocks = scorer(make_drafter())
    alone = sum(
        blocks.over([make_batch({name: sample})], rank=0, ranks=1, samples=1)
        for name, sample in samples.items()
    )
    together = blocks.over([make_batch(samples)], rank=0, ranks=1, samples=len(samples))
    assert torch.equal(together, alone)
    assert together[0, 1] == 5 * len(samples)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_ranks_together_score_each_sample_once(ranks: int, batch_size: int) -> None:
    """SpecForge's own deal, in which some samples come twice."""
    samples = list(samples_of_few_tokens().items())
    blocks = scorer(make_drafter())
    whole = blocks.over([make_batch(dict(samples))], rank=0, ranks=1, samples=5)

    def dealt(rank: int) -> Iterator[TrainBatch]:
        indices = _distributed_sampler_indices(
            5, dp_rank=rank, dp_size=ranks, seed=0, epoch=0, shuffle=False
        )
        for start in range(0, len(indices), batch_size):
            chosen = indices[start : start + batch_size]
            yield make_batch(dict(samples[index] for index in chosen))

    parts = [blocks.over(dealt(rank), rank=rank, ranks=ranks, samples=5) for rank in range(ranks)]
    assert torch.equal(sum(parts), whole)


def test_states_that_are_not_finite_are_named() -> None:
    sample = make_sample(30)
    sample["hidden_states"][0, 3, 1] = torch.nan
    with pytest.raises(UserError, match=r"data/x\.ckpt: its hidden_states hold NaN"):
        scorer(make_drafter()).over(
            [make_batch({"data/x.ckpt": sample})], rank=0, ranks=1, samples=1
        )
