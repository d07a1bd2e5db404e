"""Statistics of trajectories by position: by hand, by a slow loop, added up, and of nothing."""

from __future__ import annotations

import json
from dataclasses import fields
from math import exp, isnan, log

import pytest
import torch
from torch import Tensor

from specforge_dstill.evaluation.statistics_text import (
    acceptance_table,
    position_table,
    statistics_json,
)
from specforge_dstill.evaluation.trajectory_statistics import TrajectoryStatistics
from specforge_dstill.maths.blocks import ReferenceBlocks, reference_blocks
from specforge_dstill.maths.rollout import CommitRule, rollout
from specforge_dstill.maths.trajectory import Trajectory

B, K, V, MASK = 5, 3, 20, 0


def by_hand() -> Trajectory:
    """One block of 4, 2 passes, top-2: endpoint 9 5 6 7; position 2 is committed first."""
    return Trajectory(
        endpoint=torch.tensor([[9, 5, 6, 7]]),
        commit_pass=torch.tensor([[0, 2, 1, 1]]),
        top_ids=torch.tensor([[[[5, 1], [6, 2], [3, 7]]]]),
        top_logp=torch.tensor([[[[0.5, 0.25], [0.75, 0.125], [0.5, 0.5]]]]).log(),
    )


def rolled(count: int, *, seed: int, every_pass: bool = False) -> Trajectory:
    """Refinements by a random drafter: its logits depend on the block and the position."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(V, V, generator=generator)
    place = torch.randn(B, V, generator=generator)
    anchors = torch.randint(1, V, (count,), generator=generator)
    return rollout(
        lambda blocks: 2 * table[blocks].mean(1, keepdim=True) + place,
        lambda rows: rows.clone(),
        anchors,
        block_size=B,
        steps=K,
        rule=CommitRule(MASK, top_k=4, every_pass=every_pass),
    )


def references(count: int, *, seed: int) -> ReferenceBlocks:
    """Of random text: a few positions are not scored, some blocks run past the end."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 4, (count + 4,), generator=generator)
    mask = (torch.rand(count + 4, generator=generator) < 0.9).long()
    return reference_blocks(ids, mask, torch.arange(count), block_size=B)


def same(one: TrajectoryStatistics, other: TrajectoryStatistics) -> None:
    for field in fields(TrajectoryStatistics):
        torch.testing.assert_close(getattr(one, field.name), getattr(other, field.name))


def test_one_block_by_hand() -> None:
    reference = ReferenceBlocks(
        tokens=torch.tensor([[9, 5, 6, 8]]),
        inside=torch.ones(1, 4, dtype=torch.bool),
        scored=torch.tensor([[False, True, True, True]]),
    )
    found = TrajectoryStatistics.of(by_hand(), steps=2, reference=reference)
    assert int(found.blocks) == 1
    assert found.commits.tolist() == [[0, 1], [1, 0], [1, 0]]
    assert found.mean_commit_pass.tolist() == [2, 1, 1]
    assert found.mean_tail.tolist() == pytest.approx([0.25, 0.125, 0], abs=1e-6)
    # The third position committed 7, the second of its retained ids.
    assert found.mean_confidence.tolist() == pytest.approx([0.5, 0.75, 0.5])
    assert found.agreement.tolist() == [1, 1, 0]
    assert found.accepted.tolist() == [0, 0, 1, 0]
    assert found.acceptance == 3  # the anchor and two more
    assert isnan(found.root_acceptance)


def test_a_token_outside_the_retained_ids_has_no_confidence() -> None:
    one = by_hand()
    sampled = Trajectory(torch.tensor([[9, 5, 6, 4]]), one.commit_pass, one.top_ids, one.top_logp)
    found = TrajectoryStatistics.of(sampled, steps=2)
    assert found.confident.tolist() == [1, 1, 0]
    assert isnan(found.mean_confidence.tolist()[2])


@pytest.mark.parametrize("every_pass", [False, True])
def test_against_a_slow_loop(every_pass: bool) -> None:
    trajectory, reference = rolled(30, seed=1, every_pass=every_pass), references(30, seed=2)
    found = TrajectoryStatistics.of(trajectory, steps=K, reference=reference)
    for i in range(1, B):
        tails, certain, agreed, scored, passes = [], [], 0, 0, []
        for n in range(30):
            t = int(trajectory.commit_pass[n, i])
            at = t - 1 if every_pass else 0
            ids = trajectory.top_ids[n, at, i - 1].tolist()
            logp = trajectory.top_logp[n, at, i - 1].tolist()
            token = int(trajectory.endpoint[n, i])
            tails.append(max(0.0, 1 - sum(map(exp, logp))))
            certain.append(exp(logp[ids.index(token)]))
            passes.append(t)
            if reference.scored[n, i]:
                scored += 1
                agreed += token == int(reference.tokens[n, i])
        assert float(found.mean_tail[i - 1]) == pytest.approx(sum(tails) / 30, abs=1e-6)
        assert float(found.mean_confidence[i - 1]) == pytest.approx(sum(certain) / 30, abs=1e-6)
        assert float(found.mean_commit_pass[i - 1]) == pytest.approx(sum(passes) / 30)
        assert (int(found.agreed[i - 1]), int(found.scored[i - 1])) == (agreed, scored)
    lengths = [
        _prefix(trajectory.endpoint[n], reference, n) for n in range(30) if reference.scored[n, 1]
    ]
    assert found.accepted.tolist() == [lengths.count(length) for length in range(B)]
    assert found.acceptance == pytest.approx(1 + sum(lengths) / len(lengths))


def _prefix(tokens: Tensor, reference: ReferenceBlocks, n: int) -> int:
    length = 0
    for i in range(1, B):
        if not reference.scored[n, i] or tokens[i] != reference.tokens[n, i]:
            break
        length += 1
    return length


def test_the_root_is_the_first_passs_most_probable_token() -> None:
    trajectory, reference = rolled(30, seed=1, every_pass=True), references(30, seed=2)
    found = TrajectoryStatistics.of(trajectory, steps=K, reference=reference)
    root = torch.cat([trajectory.endpoint[:, :1], trajectory.top_ids[:, 0, :, 0]], dim=1)
    lengths = [_prefix(root[n], reference, n) for n in range(30) if reference.scored[n, 1]]
    assert found.root_accepted.tolist() == [lengths.count(length) for length in range(B)]
    assert found.root_acceptance == pytest.approx(1 + sum(lengths) / len(lengths))


def test_parts_add_up_to_the_whole() -> None:
    whole, reference = rolled(20, seed=3, every_pass=True), references(20, seed=4)
    total = TrajectoryStatistics.none(block_size=B, steps=K)
    for rows in torch.arange(20).split([7, 1, 12]):
        part = ReferenceBlocks(
            reference.tokens[rows], reference.inside[rows], reference.scored[rows]
        )
        total = total + TrajectoryStatistics.of(whole[rows], steps=K, reference=part)
    same(total, TrajectoryStatistics.of(whole, steps=K, reference=reference))


def test_no_blocks() -> None:
    none = TrajectoryStatistics.of(rolled(3, seed=0)[torch.arange(0)], steps=K)
    same(none, TrajectoryStatistics.none(block_size=B, steps=K))
    assert isnan(none.acceptance)
    assert statistics_json(none)["mean_commit_pass"] == [None] * (B - 1)
    assert "–" in position_table(none)


def test_blocks_whose_first_position_does_not_count_have_no_acceptance() -> None:
    reference = ReferenceBlocks(
        tokens=torch.tensor([[9, 5, 6, 8]]),
        inside=torch.ones(1, 4, dtype=torch.bool),
        scored=torch.tensor([[False, False, True, True]]),
    )
    found = TrajectoryStatistics.of(by_hand(), steps=2, reference=reference)
    content = json.loads(json.dumps(statistics_json(found), allow_nan=False))
    assert content["scored"] == [0, 1, 1]
    assert content["agreement"] == [None, 1, 0]
    assert content["accepted"] is content["acceptance_length"] is None
    assert [line.split()[-1] for line in position_table(found).splitlines()[2:]] == [
        *("–", "█" * 24, "0.0")
    ]


def test_the_tables_show_the_reference_only_when_there_is_one() -> None:
    trajectory, reference = rolled(30, seed=1, every_pass=True), references(30, seed=2)
    without = TrajectoryStatistics.of(trajectory, steps=K)
    assert "agrees" not in position_table(without)
    assert statistics_json(without)["agreement"] is None
    found = TrajectoryStatistics.of(trajectory, steps=K, reference=reference)
    lines = position_table(found).splitlines()
    assert len(lines) == 2 + B - 1
    assert "agrees %" in lines[0]
    assert "root agrees %" in lines[0]
    rows = acceptance_table(found).splitlines()[2:]
    assert [int(row.split()[1]) for row in rows] == found.accepted.tolist()


def test_mass_rounded_above_one_is_no_negative_tail() -> None:
    one = by_hand()
    above = one.top_logp.clone()
    above[0, 0, 0] = torch.tensor([log(0.75), log(0.2505)])
    found = TrajectoryStatistics.of(
        Trajectory(one.endpoint, one.commit_pass, one.top_ids, above), steps=2
    )
    assert float(found.mean_tail[0]) == 0
