"""A step of Stage I against a reference in plain loops, and what its draws depend on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from specforge.training.strategies.base import StepContext, StepOutput

from specforge_dstill.modes import teacher as teacher_module
from specforge_dstill.modes.block_batch import SampleBlocks, stack_blocks
from specforge_dstill.modes.block_step import BlockStep
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.teacher import TeacherStrategy, teacher_strategy
from specforge_dstill.option_sections import TeacherOptions
from specforge_dstill.options import DstillOptions
from tests import tiny
from tests.modes.support import (
    MIXED,
    all_anchors,
    as_sample,
    make_batch,
    make_drafter,
    make_sample,
    three_samples,
)

B = tiny.BLOCK_SIZE
STEP = StepContext(global_step=3, total_steps=10)


def strategy_of(
    drafter: BlockDrafter, *, num_anchors: int = 6, seed: int = 0, **options: Any
) -> TeacherStrategy:
    return teacher_strategy(
        BlockStep(drafter, DstillOptions(steps=3, rows_per_tile=7, **options)),
        num_anchors=num_anchors,
        seed=seed,
    )


def drawn_by(strategy: TeacherStrategy, samples: dict[str, Any]) -> list[SampleBlocks]:
    return strategy._draw_batch(
        [as_sample(*item) for item in samples.items()], visit=STEP.global_step
    )


def reference(
    drafter: BlockDrafter,
    samples: dict[str, Any],
    drawn: list[SampleBlocks],
    *,
    gamma: float | None = None,
    alpha_m: float = 0.0,
) -> dict[str, float]:
    """Eq. 2, 6 and 7 a block at a time, with whole logits, in float64."""
    drafter = drafter.double()
    numerator, blocks, correct, rows = 0.0, 0, 0, 0
    lengths: list[int] = []
    for sample, parts in zip(samples.values(), drawn, strict=True):
        tokens, mask = sample["input_ids"][0].tolist(), sample["loss_mask"][0].tolist()
        for n, anchor in enumerate(parts.anchors.tolist()):
            shown = parts.inputs[n].tolist()
            assert shown[0] == tokens[anchor]
            scored = [i for i in range(1, B) if anchor + i < len(tokens) and mask[anchor + i] > 0]
            masked = [i for i in scored if shown[i] == tiny.MASK_ID]
            assert all(shown[i] == tokens[anchor + i] for i in scored if i not in masked)
            states = drafter(
                parts.inputs[None, n : n + 1],
                parts.anchors[None, n : n + 1],
                sample["hidden_states"].double(),
            )
            logits = drafter.head()(states[0, 0])
            logp = logits.log_softmax(-1)
            logits[:, tiny.MASK_ID] = -torch.inf
            best = logits.argmax(-1).tolist()
            if scored and set(shown[1:]) == {tiny.MASK_ID}:
                hits = 0
                while hits + 1 in scored and best[hits + 1] == tokens[anchor + hits + 1]:
                    hits += 1
                lengths.append(1 + hits)
            if not masked:
                continue
            blocks += 1
            place = {i: math.exp(-(i - 1) / gamma) if gamma else 1.0 for i in masked}
            share = len(masked) ** alpha_m / (sum(m**alpha_m for m in range(1, B)) / (B - 1))
            total = sum(place.values())
            for i in masked:
                nll = -float(logp[i, tokens[anchor + i]])
                numerator += share * place[i] / total * nll
                correct += best[i] == tokens[anchor + i]
                rows += 1
    return {
        "numerator": numerator,
        "blocks": blocks,
        "acc": correct / rows,
        "rows": rows,
        "accept_length": sum(lengths) / len(lengths),
        "roots": len(lengths),
    }


def ratio(out: StepOutput, name: str) -> float:
    numerator, denominator = out.ratio_metrics[name]
    return float(numerator / denominator)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"position_decay": 2.0},
        {"mask_count_alpha": 1.5},
        {"position_decay": 3.0, "mask_count_alpha": 0.5},
    ],
)
@torch.no_grad()
def test_a_step_is_the_reference(options: dict[str, float]) -> None:
    samples = three_samples()
    # Another turn inside the blocks: seen, perhaps revealed, never scored.
    samples["data/b.ckpt"]["loss_mask"][0, 12:15] = 0
    drafter = make_drafter(MIXED)
    strategy = strategy_of(drafter, teacher=TeacherOptions(**options))
    out = strategy.forward_loss(make_batch(samples), STEP)
    drawn = drawn_by(strategy, samples)
    expected = reference(
        make_drafter(MIXED),
        samples,
        drawn,
        gamma=options.get("position_decay"),
        alpha_m=options.get("mask_count_alpha", 0.0),
    )
    assert out.loss_terms is not None
    numerator, denominator = out.loss_terms
    # float32 states and logits against float64: errors of 1e-6 a row.
    assert float(numerator) == pytest.approx(expected["numerator"], rel=1e-5)
    assert float(denominator) == expected["blocks"]
    assert float(out.loss) == pytest.approx(expected["numerator"] / expected["blocks"], rel=1e-5)
    assert ratio(out, "acc") == pytest.approx(expected["acc"])
    assert float(out.ratio_metrics["acc"][1]) == expected["rows"]
    assert ratio(out, "accept_length") == pytest.approx(expected["accept_length"])
    assert float(out.ratio_metrics["accept_length"][1]) == expected["roots"]


def test_acceptance_counts_a_run_of_hits() -> None:
    """Predictions made right up to a place: the length is that place, the anchor included."""
    samples = {"data/a.ckpt": make_sample(30, seed=1)}
    strategy = strategy_of(make_drafter(), num_anchors=10**6)
    blocks, loss = strategy._step(
        [strategy._draw(as_sample(*x), torch.Generator(), root=True) for x in samples.items()],
        samples["data/a.ckpt"],
    )
    assert int(blocks.at_root.sum()) == len(all_anchors(samples["data/a.ckpt"]))
    truth = blocks.reference[blocks.supervised]
    perfect, count = blocks.root_acceptance(truth)
    assert int(count) == len(all_anchors(samples["data/a.ckpt"]))
    assert int(perfect) == int(1 * count + blocks.scored.sum())
    place = blocks.supervised.nonzero()[:, 2]
    wrong_at_3 = torch.where(place == 3, (truth + 1) % tiny.VOCAB, truth)
    found, _ = blocks.root_acceptance(wrong_at_3)
    assert int(found) == int((1 + blocks.scored[..., 1:3].sum(-1)).sum())
    assert loss.predicted.shape == truth.shape


def test_a_block_that_shows_the_next_turn_is_not_at_the_root() -> None:
    """Its only scored position is masked, what comes after the answer is not."""
    sample = make_sample(20, scored=slice(10, 12))
    strategy = strategy_of(make_drafter())
    drawn = [
        strategy._draw(as_sample("data/a.ckpt", sample), torch.Generator().manual_seed(seed))
        for seed in range(20)
    ]
    blocks = stack_blocks(drawn, mask_token_id=tiny.MASK_ID, device=torch.device("cpu"))
    shows = (blocks.inputs[..., 1:] != tiny.MASK_ID).any(-1)
    assert (shows & (blocks.supervised == blocks.scored).all(-1)).any(), "there is such a block"
    assert not (blocks.at_root & shows).any()


def test_a_draw_depends_on_seed_sample_and_step_only() -> None:
    samples = three_samples()
    strategy = strategy_of(make_drafter())
    together = drawn_by(strategy, samples)
    turned = drawn_by(strategy, dict(reversed(samples.items())))[::-1]
    alone = [drawn_by(strategy, {name: sample})[0] for name, sample in samples.items()]
    again = drawn_by(strategy_of(make_drafter(seed=4)), samples)
    for others in (turned, alone, again):
        for one, other in zip(together, others, strict=True):
            assert torch.equal(one.inputs, other.inputs)
            assert torch.equal(one.anchors, other.anchors)
    sample = as_sample("data/a.ckpt", samples["data/a.ckpt"])
    first = together[0].inputs
    later = strategy._draw_batch([sample], visit=4)[0].inputs
    seeded = strategy_of(make_drafter(), seed=1)._draw_batch([sample], visit=3)[0].inputs
    renamed = drawn_by(strategy, {"data/z.ckpt": samples["data/a.ckpt"]})[0].inputs
    assert not any(torch.equal(first, other) for other in (later, seeded, renamed))


def test_the_loss_does_not_depend_on_the_order_or_the_cut_of_a_batch() -> None:
    samples = three_samples()
    strategy = strategy_of(make_drafter(MIXED))
    whole = strategy.forward_loss(make_batch(samples), STEP).loss_terms
    turned = strategy.forward_loss(make_batch(dict(reversed(samples.items()))), STEP).loss_terms
    parts = [
        strategy.forward_loss(make_batch({name: sample}), STEP).loss_terms
        for name, sample in samples.items()
    ]
    assert whole is not None
    assert turned is not None
    summed = [sum(part[i].item() for part in parts if part is not None) for i in range(2)]
    for i in range(2):
        assert float(whole[i]) == pytest.approx(float(turned[i]), rel=1e-5)
        assert float(whole[i]) == pytest.approx(summed[i], rel=1e-5)


def always(level: float, strategy: TeacherStrategy) -> TeacherStrategy:
    """The strategy with one reveal level."""
    from dataclasses import replace

    return TeacherStrategy(strategy._step, replace(strategy._draw, levels=(level,)), seed=0)


def test_a_draw_without_a_masked_position_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two anchors, one scored position behind each: at 0.9 most draws leave nothing."""
    samples = {"data/a.ckpt": make_sample(20, seed=1, scored=slice(10, 12))}
    strategy = always(0.9, strategy_of(make_drafter()))
    batch = make_batch(samples)
    draws = []
    original = type(strategy._draw).__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> SampleBlocks:
        draws.append(kwargs.get("root", False))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(strategy._draw), "__call__", counted)
    most = 0
    for step in range(20):
        draws.clear()
        out = strategy.forward_loss(batch, StepContext(step, 20))
        assert out.loss_terms is not None
        assert float(out.loss_terms[1]) == 1
        assert math.isfinite(float(out.loss))
        assert not any(draws)
        most = max(most, len(draws))
    assert most > 1


def test_after_many_draws_the_root_is_taken() -> None:
    samples = {"data/a.ckpt": make_sample(20, seed=1, scored=slice(10, 12))}
    strategy = always(1.0, strategy_of(make_drafter()))
    out = strategy.forward_loss(make_batch(samples), STEP)
    assert out.loss_terms is not None
    assert float(out.loss_terms[1]) == 1
    out.loss_terms[0].backward()
    assert teacher_module.REDRAWS >= 10


def test_only_the_draft_is_trained_and_saved() -> None:
    drafter = make_drafter()
    strategy = strategy_of(drafter)
    out = strategy.forward_loss(make_batch(three_samples()), STEP)
    out.loss.backward()
    for name, parameter in drafter.named_parameters():
        assert (parameter.grad is not None) == name.startswith("draft_model."), name
    saved = strategy.checkpoint_state_filter(drafter.state_dict())
    assert saved.keys() == drafter.draft_model.state_dict().keys()
