"""A step of Stage II against a reference in plain loops, and what its draws depend on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from specforge.training.strategies.base import StepContext, StepOutput

from specforge_dstill.modes.block_batch import SampleBlocks
from specforge_dstill.modes.block_step import BlockStep
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.records import StoredRecords
from specforge_dstill.modes.student import StudentStrategy, progress_of, student_strategy
from specforge_dstill.option_sections import StudentOptions
from specforge_dstill.options import DstillOptions
from tests import tiny
from tests.modes.support import (
    MIXED,
    MemoryStore,
    as_sample,
    collect_in_memory,
    make_batch,
    make_drafter,
    make_sample,
    three_samples,
)

B = tiny.BLOCK_SIZE
STEP = StepContext(global_step=5, total_steps=10)
P_ROOT = 0.5 + 0.35 * (1 - math.cos(math.pi * (0.5 - 0.1) / 0.6)) / 2


def strategy_of(
    drafter: BlockDrafter,
    store: Any,
    *,
    num_anchors: int = 9,
    seed: int = 0,
    **options: Any,
) -> StudentStrategy:
    all_options = DstillOptions(steps=3, rows_per_tile=7, student=StudentOptions(**options))
    return student_strategy(
        BlockStep(drafter, all_options), StoredRecords(store), num_anchors=num_anchors, seed=seed
    )


def drawn_by(
    strategy: StudentStrategy,
    samples: dict[str, Any],
    *,
    p_root: float = P_ROOT,
    visit: int = STEP.global_step,
) -> list[SampleBlocks]:
    hidden_states = make_batch(samples).tensors["hidden_states"]
    named = [as_sample(*item) for item in samples.items()]
    return strategy._draw_batch(named, hidden_states, p_root=p_root, visit=visit)


def reference(
    drafter: BlockDrafter,
    store: MemoryStore,
    samples: dict[str, Any],
    drawn: list[SampleBlocks],
    *,
    alpha: float,
    first: float | None,
    decay: float | None,
) -> dict[str, float]:
    """Eq. 3, 8, 10, 11 and 12 a position at a time, with whole logits, in float64."""
    drafter = drafter.double()
    sums = {"ce": 0.0, "kd": 0.0, "weight": 0.0, "hits": 0, "rows": 0, "blocks": 0}
    lengths: list[int] = []
    for (sample_id, sample), parts in zip(samples.items(), drawn, strict=True):
        tokens, mask = sample["input_ids"][0].tolist(), sample["loss_mask"][0].tolist()
        record = store.record_for(sample_id, sample["input_ids"][0])
        for n, anchor in enumerate(parts.anchors.tolist()):
            row = record.anchors.tolist().index(anchor)
            endpoint = record.trajectory.endpoint[row].tolist()
            passes = record.trajectory.commit_pass[row].tolist()
            shown = parts.inputs[n].tolist()
            # The state is that of some pass t: what was committed earlier, and only that.
            t = min((p for p, s in zip(passes, shown, strict=True) if s == tiny.MASK_ID))
            assert shown == [
                e if p < t else tiny.MASK_ID for e, p in zip(endpoint, passes, strict=True)
            ]
            scored = [i for i in range(1, B) if anchor + i < len(tokens) and mask[anchor + i] > 0]
            wrong = [i for i in scored if endpoint[i] != tokens[anchor + i]]
            d = min(wrong, default=B)
            rows = [i for i in scored if passes[i] >= t]
            states = drafter(
                parts.inputs[None, n : n + 1],
                parts.anchors[None, n : n + 1],
                sample["hidden_states"].double(),
            )
            logits = drafter.head()(states[0, 0])
            p = logits.softmax(-1)
            logits[:, tiny.MASK_ID] = -torch.inf
            best = logits.argmax(-1).tolist()
            if scored and set(shown[1:]) == {tiny.MASK_ID}:
                hits = 0
                while hits + 1 in scored and best[hits + 1] == tokens[anchor + hits + 1]:
                    hits += 1
                lengths.append(1 + hits)
            sums["blocks"] += bool(rows)
            for i in rows:
                weight = 1.0
                if first is not None and i >= d:
                    weight = first * (decay or 1.0) ** (i - d)
                ids, logq = (x[row, i - 1].tolist() for x in record.trajectory.committing())
                q = [math.exp(x) for x in logq]
                kd = sum(a * math.log(a / float(p[i, v])) for a, v in zip(q, ids, strict=True))
                rest = 1 - sum(q)
                p_rest = sum(float(p[i, v]) for v in range(tiny.VOCAB) if v not in ids)
                kd += rest * math.log(rest / p_rest) if rest > 0 else 0.0
                sums["ce"] += weight * -math.log(float(p[i, endpoint[i]]))
                sums["kd"] += weight * kd
                sums["weight"] += weight
                sums["hits"] += best[i] == endpoint[i]
                sums["rows"] += 1
    return {
        "numerator": (1 - alpha) * sums["ce"] + alpha * sums["kd"],
        "denominator": sums["weight"],
        "ce": sums["ce"] / sums["weight"],
        "kd": sums["kd"] / sums["weight"],
        "acc": sums["hits"] / sums["rows"],
        "masked": sums["rows"] / sums["blocks"],
        "accept_length": sum(lengths) / len(lengths),
    }


def ratio(out: StepOutput, name: str) -> float:
    numerator, denominator = out.ratio_metrics[name]
    return float(numerator / denominator)


@pytest.mark.parametrize("every_pass", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.0},
        {"alpha": 1.0},
        {"first_mismatch_weight": 0.4},
        {"first_mismatch_weight": 0.4, "mismatch_decay": 0.5, "alpha": 0.6},
    ],
)
@torch.no_grad()
def test_a_step_is_the_reference(options: dict[str, float], every_pass: bool) -> None:
    samples = three_samples()
    samples["data/b.ckpt"]["loss_mask"][0, 12:15] = 0
    store = collect_in_memory(make_drafter(MIXED, seed=1), samples, every_pass=every_pass)
    strategy = strategy_of(make_drafter(MIXED), store, **options)
    out = strategy.forward_loss(make_batch(samples), STEP)
    expected = reference(
        make_drafter(MIXED),
        store,
        samples,
        drawn_by(strategy, samples),
        alpha=options.get("alpha", 0.2),
        first=options.get("first_mismatch_weight"),
        decay=options.get("mismatch_decay"),
    )
    assert out.loss_terms is not None
    numerator, denominator = (float(term) for term in out.loss_terms)
    # float32 against float64; the rest of a float32 distribution is known to 1e-7 only.
    assert numerator == pytest.approx(expected["numerator"], rel=2e-5)
    assert denominator == pytest.approx(expected["denominator"], rel=1e-6)
    assert float(out.loss) == pytest.approx(numerator / denominator, rel=1e-6)
    for name in ("ce", "kd", "acc", "masked", "accept_length"):
        assert ratio(out, name) == pytest.approx(expected[name], rel=2e-5), name
    assert out.metrics["p_root"] == pytest.approx(P_ROOT)


def test_a_draw_depends_on_seed_sample_and_step_only() -> None:
    samples = three_samples()
    store = collect_in_memory(make_drafter(seed=1), samples)
    strategy = strategy_of(make_drafter(), store)
    together = drawn_by(strategy, samples)
    turned = drawn_by(strategy, dict(reversed(samples.items())))[::-1]
    alone = [drawn_by(strategy, {name: sample})[0] for name, sample in samples.items()]
    for others in (turned, alone):
        for one, other in zip(together, others, strict=True):
            assert torch.equal(one.inputs, other.inputs)
            assert torch.equal(one.anchors, other.anchors)
    sample = {"data/a.ckpt": samples["data/a.ckpt"]}
    later = drawn_by(strategy, sample, visit=6)[0].inputs
    reseeded = strategy_of(make_drafter(), store, seed=1)
    seeded = drawn_by(reseeded, sample)[0].inputs
    assert not torch.equal(together[0].inputs, later)
    assert not torch.equal(together[0].inputs, seeded)


def test_every_visit_draws_a_new_state_of_the_same_blocks() -> None:
    samples = three_samples()
    store = collect_in_memory(make_drafter(seed=1), samples)
    strategy = strategy_of(make_drafter(), store, num_anchors=10**6)
    sample = {"data/a.ckpt": samples["data/a.ckpt"]}
    masked = torch.stack(
        [
            (drawn_by(strategy, sample, p_root=0.5, visit=visit)[0].inputs == tiny.MASK_ID)
            for visit in range(40)
        ]
    ).sum(-1)
    # B = 8, K = 3: the inputs of the passes have 7, 4 and 2 masks; half are at the root.
    assert set(masked.unique().tolist()) == {7, 4, 2}
    assert float((masked == 7).float().mean()) == pytest.approx(0.5, abs=0.1)
    assert all(len(column.unique()) > 1 for column in masked.T)


def test_num_anchors_bounds_the_blocks_of_a_sample() -> None:
    samples = three_samples()
    store = collect_in_memory(make_drafter(seed=1), samples)
    drawn = drawn_by(strategy_of(make_drafter(), store, num_anchors=4), samples)
    assert [len(blocks.anchors) for blocks in drawn] == [4, 4, 4]
    for blocks in drawn:
        assert blocks.anchors.tolist() == sorted(set(blocks.anchors.tolist()))


def test_a_batch_of_which_nothing_is_masked_falls_back_to_the_root() -> None:
    """One block with one scored position, committed first: only the root supervises it."""
    for seed in range(40):
        samples = {"data/a.ckpt": make_sample(20, seed=seed, scored=slice(10, 12))}
        store = collect_in_memory(make_drafter(seed=1), samples)
        record = store.record_for("data/a.ckpt", samples["data/a.ckpt"]["input_ids"][0])
        if int(record.trajectory.commit_pass[0, 1]) == 1:
            break
    else:
        pytest.fail("no such record")
    strategy = strategy_of(make_drafter(), store, p_root_start=0.0, p_root_end=0.0)
    out = strategy.forward_loss(make_batch(samples), STEP)
    assert out.loss_terms is not None
    assert float(out.loss_terms[1]) == 1
    assert ratio(out, "masked") == 1
    assert math.isfinite(float(out.loss))
    out.loss_terms[0].backward()


def test_progress_is_that_of_the_run() -> None:
    assert progress_of(StepContext(0, 40)) == 0
    assert progress_of(StepContext(10, 40)) == 0.25
    assert progress_of(StepContext(50, 40)) == 1
    assert progress_of(StepContext(5, None)) == 1
    assert progress_of(None) == 1


@pytest.mark.parametrize(("step", "expected"), [(0, 0.5), (4, 0.5), (5, P_ROOT), (9, 0.85)])
def test_p_root_is_logged_from_the_schedule(step: int, expected: float) -> None:
    samples = three_samples()
    store = collect_in_memory(make_drafter(seed=1), samples)
    options = {"p_root_warmup": 0.4} if step == 4 else {}
    strategy = strategy_of(make_drafter(), store, **options)
    out = strategy.forward_loss(make_batch(samples), StepContext(step, 10))
    assert out.metrics["p_root"] == pytest.approx(expected)
