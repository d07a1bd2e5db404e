"""Trajectories made in the student's step against the same ones read from a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from specforge.training.strategies.base import StepContext, StepOutput
from torch import Tensor

from specforge_dstill.maths.anchors import valid_anchors
from specforge_dstill.modes.block_step import BlockStep
from specforge_dstill.modes.records import LiveTeacher, RecordSource, StoredRecords, record_source
from specforge_dstill.modes.refine import Refiner
from specforge_dstill.modes.student import StudentStrategy, student_strategy
from specforge_dstill.option_sections import CollectOptions
from specforge_dstill.options import DstillOptions
from specforge_dstill.runfile import load_run
from specforge_dstill.token_hash import token_hash
from specforge_dstill.trajectory_store import (
    SampleRecord,
    StoreIdentity,
    StoreWriter,
    TrajectoryStore,
)
from tests import tiny
from tests.modes.conftest import Stages
from tests.modes.running import draft_of, same_weights
from tests.modes.support import MIXED, as_sample, make_batch, make_drafter, roll, three_samples

VISIT = 5
ANCHORS = 6
Batch = dict[str, dict[str, Tensor]]


def options(**collect: Any) -> DstillOptions:
    return DstillOptions(
        steps=3, trajectories="online", rows_per_tile=7, collect=CollectOptions(top_k=5, **collect)
    )


def live(*, seed: int = 0, **collect: Any) -> LiveTeacher:
    teacher = make_drafter(MIXED, seed=1).requires_grad_(False).eval()
    refine = Refiner(teacher, options(**collect), seed=seed)
    return LiveTeacher(refine, num_anchors=ANCHORS, teacher_hash="abc")


def records_of(source: RecordSource, samples: Batch, *, visit: int = VISIT) -> list[SampleRecord]:
    hidden_states = make_batch(samples).tensors["hidden_states"]
    return source.records(
        [as_sample(*item) for item in samples.items()], hidden_states, visit=visit
    )


def collected(folder: Path, samples: Batch, anchors: list[Tensor], *, dtype: str) -> StoredRecords:
    """A store on disk of the same teacher at ``anchors``, rolled out without any strategy."""
    identity = StoreIdentity(
        block_size=tiny.BLOCK_SIZE,
        steps=3,
        top_k=5,
        record="commit",
        commit="greedy",
        temperature=1.0,
        mask_token_id=tiny.MASK_ID,
        vocab_size=tiny.VOCAB,
        max_length=64,
        anchors_per_sample=ANCHORS,
        seed=0,
        teacher_hash="abc",
        draft_config={},
        versions={},
    )
    writer = StoreWriter(
        folder, identity=identity, sample_ids=list(samples), shard_size=2, logp_dtype=dtype
    )
    rows = [
        SampleRecord(
            sample_id=sample_id,
            token_hash=token_hash(sample["input_ids"][0]),
            length=sample["input_ids"].shape[1],
            anchors=at,
            trajectory=roll(make_drafter(MIXED, seed=1), sample, at),
        )
        for (sample_id, sample), at in zip(samples.items(), anchors, strict=True)
    ]
    writer.write_shard(0, rows[:2])
    writer.write_shard(1, rows[2:])
    writer.finish()
    return StoredRecords(TrajectoryStore.open(folder))


def step_of(source: RecordSource, samples: Batch) -> tuple[StepOutput, list[Tensor], int]:
    """A step of a fresh student: what it returns, its gradients, and the bytes its graph keeps."""
    student = make_drafter(MIXED)
    strategy = student_strategy(BlockStep(student, options()), source, num_anchors=ANCHORS, seed=0)
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        out = strategy.forward_loss(make_batch(samples), StepContext(VISIT, 10))
        assert out.loss_terms is not None
        out.loss_terms[0].backward()
    return out, [p.grad for p in student.draft_model.parameters() if p.grad is not None], kept


def test_an_online_step_is_the_stored_step_bit_for_bit(tmp_path: Path) -> None:
    """The same blocks, draws, losses, gradients and graph: the rollout itself keeps nothing."""
    samples = three_samples()
    teacher = live()
    anchors = [record.anchors for record in records_of(teacher, samples)]
    assert [len(at) for at in anchors] == [ANCHORS] * 3
    store = collected(tmp_path, samples, anchors, dtype="float32")
    online, own, kept = step_of(teacher, samples)
    stored, theirs, kept_by_stored = step_of(store, samples)
    assert online.loss_terms is not None
    assert stored.loss_terms is not None
    for one, other in zip(online.loss_terms, stored.loss_terms, strict=True):
        assert torch.equal(one, other)
    assert online.ratio_metrics.keys() == stored.ratio_metrics.keys()
    for name, pair in online.ratio_metrics.items():
        for one, other in zip(pair, stored.ratio_metrics[name], strict=True):
            assert torch.equal(one, other), name
    assert online.metrics == stored.metrics
    assert len(own) > 10
    assert all(torch.equal(one, other) for one, other in zip(own, theirs, strict=True))
    assert kept == kept_by_stored > 0
    assert all(p.grad is None for p in teacher.refine.drafter.parameters())


def test_a_store_of_half_precision_differs_by_its_rounding_only(tmp_path: Path) -> None:
    samples = three_samples()
    anchors = [record.anchors for record in records_of(live(), samples)]
    online, _, _ = step_of(live(), samples)
    stored, _, _ = step_of(collected(tmp_path, samples, anchors, dtype="float16"), samples)
    # The KD term, a fifth of the loss, sees log-probabilities of three digits.
    assert float(stored.loss) == pytest.approx(float(online.loss), rel=1e-4)


def test_blocks_are_fresh_at_each_visit_and_keyed_by_seed_sample_and_step() -> None:
    samples = three_samples()
    together = records_of(live(), samples)
    alone = [records_of(live(), {name: sample})[0] for name, sample in samples.items()]
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.anchors, other.anchors)
        assert torch.equal(one.trajectory.endpoint, other.trajectory.endpoint)
    for others in (records_of(live(), samples, visit=6), records_of(live(seed=1), samples)):
        assert all(
            not torch.equal(one.anchors, other.anchors)
            for one, other in zip(together, others, strict=True)
        )
    for record, sample in zip(together, samples.values(), strict=True):
        legal = valid_anchors(sample["loss_mask"][0]).tolist()
        assert set(record.anchors.tolist()) < set(legal)
        assert record.token_hash == token_hash(sample["input_ids"][0])
        assert record.trajectory.top_ids.shape[1:] == (1, tiny.BLOCK_SIZE - 1, 5)


def test_every_valid_anchor_is_met_in_time() -> None:
    samples = {"data/a.ckpt": three_samples()["data/a.ckpt"]}
    seen = {
        int(anchor)
        for visit in range(40)
        for anchor in records_of(live(), samples, visit=visit)[0].anchors
    }
    assert seen == set(valid_anchors(samples["data/a.ckpt"]["loss_mask"][0]).tolist())


def test_sampled_commitment_has_a_generator_of_its_own() -> None:
    samples = three_samples()
    drawn, again, greedy, later, seeded = (
        records_of(source, samples, visit=visit)
        for source, visit in (
            (live(commit="sampled", temperature=2.0), VISIT),
            (live(commit="sampled", temperature=2.0), VISIT),
            (live(), VISIT),
            (replace(live(commit="sampled", temperature=2.0), num_anchors=99), VISIT),
            (replace(live(commit="sampled", temperature=2.0), num_anchors=99), 6),
        )
    )
    for one, other in zip(drawn, again, strict=True):
        assert torch.equal(one.trajectory.endpoint, other.trajectory.endpoint)
    # How tokens are committed does not touch which blocks are drawn.
    assert all(torch.equal(a.anchors, b.anchors) for a, b in zip(drawn, greedy, strict=True))
    assert any(
        not torch.equal(a.trajectory.endpoint, b.trajectory.endpoint)
        for a, b in zip(drawn, greedy, strict=True)
    )
    # With every anchor taken the blocks are the same; the tokens are drawn anew.
    assert all(torch.equal(a.anchors, b.anchors) for a, b in zip(later, seeded, strict=True))
    assert any(
        not torch.equal(a.trajectory.endpoint, b.trajectory.endpoint)
        for a, b in zip(later, seeded, strict=True)
    )


def test_the_contract_names_the_teachers_weights_and_how_they_roll_out() -> None:
    assert live(commit="sampled", temperature=0.5).contract() == {
        "dstill_teacher_hash": "abc",
        "dstill_rollout": (("commit", "sampled"), ("temperature", 0.5), ("top_k", 5)),
    }


def test_the_teacher_is_frozen_and_shares_the_targets_parts(stages: Stages) -> None:
    run = load_run(
        str(stages.folder / "dstill.yaml"),
        [
            "dstill.trajectories=online",
            f"model.draft_checkpoint_path={stages.folder / 'out/teacher'}",
            "training.attention_backend=sdpa",
        ],
        "dstill_student",
    )
    student = make_drafter()
    before = set(student.state_dict())
    source = record_source(run.config, student.draft_model.config, student, run.options)
    assert isinstance(source, LiveTeacher)
    teacher = source.refine.drafter
    assert teacher.lm_head is student.lm_head
    assert teacher.embed_tokens is student.embed_tokens
    assert not any(p.requires_grad for p in teacher.parameters())
    assert not any(module.training for module in teacher.draft_model.modules())
    assert student.draft_model.training
    saved = draft_of(stages.folder / "out/teacher/dstill_teacher-latest")
    assert same_weights(dict(teacher.draft_model.state_dict()), saved)
    # It is no part of what is trained, wrapped and saved.
    strategy: StudentStrategy = student_strategy(
        BlockStep(student, run.options), source, num_anchors=4, seed=0
    )
    assert strategy.trainable_module() is student
    assert set(student.state_dict()) == before
    own = {id(p) for p in student.parameters()}
    assert not own & {id(p) for p in teacher.draft_model.parameters()}
