from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specforge_dstill.data.generation import Decoding, draw_seed, generate, generate_batches
from specforge_dstill.evaluation.sampling import Sampling
from tests.stand_ins import STAND_INS, save_stand_in

PROMPTS = [[1, 7, 6, 10, 11, 2, 6, 1, 8, 6], [1, 7, 6, 10, 2], [5, 9], [20, 21, 22]]


def alone(model: Any, decoding: Decoding, seeds: list[int] | None = None) -> list[list[int]]:
    return [
        generate(model, [p], decoding, seeds=None if seeds is None else [seeds[i]])[0]
        for i, p in enumerate(PROMPTS)
    ]


def test_greedy_is_the_models_own_greedy(model: Any) -> None:
    found = generate(model, PROMPTS, Decoding((2,), 12), batch_size=3)
    for prompt, answer in zip(PROMPTS, found, strict=True):
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=2
        )
        assert answer == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("architecture", sorted(STAND_INS))
def test_answers_leave_the_batch_of_every_kind_of_target(architecture: str, tmp_path: Path) -> None:
    """Mamba's layers have states where others have keys and values."""
    target = save_stand_in(architecture, tmp_path)
    free = generate(target, PROMPTS, Decoding((), 6))
    stop = free[0][1]
    assert any(stop not in answer[:2] for answer in free), "answers end at different lengths"
    assert generate(target, PROMPTS, Decoding((stop,), 6)) == alone(target, Decoding((stop,), 6))


def test_answers_end_with_their_stop_token(model: Any) -> None:
    free = generate(model, PROMPTS, Decoding((), 12))
    stops = (free[0][3], free[1][5])
    found = generate(model, PROMPTS, Decoding(stops, 12))
    for answer, whole in zip(found, free, strict=True):
        ends = [i for i, token in enumerate(whole) if token in stops]
        assert answer == (whole[: ends[0] + 1] if ends else whole)
    assert found == alone(model, Decoding(stops, 12))


def test_draws_belong_to_the_prompt_not_to_the_batch(model: Any) -> None:
    decoding = Decoding((2,), 12, Sampling(0.7, top_p=0.9))
    seeds = [draw_seed(0, str(i), 0) for i in range(len(PROMPTS))]
    together = generate(model, PROMPTS, decoding, seeds=seeds)
    assert together == alone(model, decoding, seeds)
    backwards = generate(model, PROMPTS[::-1], decoding, seeds=seeds[::-1], batch_size=2)
    assert backwards[::-1] == together
    assert generate(model, PROMPTS, decoding, seeds=[s + 1 for s in seeds]) != together


def test_sampling_follows_the_probabilities(model: Any) -> None:
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPTS[2]])).logits[0, -1]
    expected = (logits / 2.0).softmax(-1)
    count = 2000
    decoding = Decoding((), 1, Sampling(2.0))
    drawn = generate(model, [PROMPTS[2]] * count, decoding, batch_size=500, seeds=range(count))
    share = torch.bincount(torch.tensor(drawn)[:, 0], minlength=len(expected)) / count
    assert (share - expected).abs().max() < 0.04


def test_top_p_keeps_the_likeliest(model: Any) -> None:
    decoding = Decoding((), 8, Sampling(1.0, top_p=1e-6))
    assert generate(model, PROMPTS, decoding, seeds=[1, 2, 3, 4]) == generate(
        model, PROMPTS, Decoding((), 8)
    )


def test_the_window_bounds_an_answer(model: Any) -> None:
    found = generate(model, PROMPTS, Decoding((), 12, max_positions=12))
    assert [len(answer) for answer in found] == [2, 7, 10, 9]
    with pytest.raises(ValueError, match="leaves no room"):
        generate(model, PROMPTS, Decoding((), 12, max_positions=10))


def test_like_lengths_share_a_batch(model: Any) -> None:
    batches = generate_batches(model, PROMPTS, Decoding((), 1), batch_size=2)
    assert [indices for indices, _ in batches] == [[0, 1], [3, 2]]


def test_wrong_calls(model: Any) -> None:
    with pytest.raises(ValueError, match="without tokens"):
        generate(model, [[]], Decoding((), 1))
    with pytest.raises(ValueError, match="needs a seed"):
        generate(model, [[1]], Decoding((), 1, Sampling(1.0)))
