"""Real decoding with a transformers target and a trained drafter: lossless, and as replayed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from specforge_dstill.data.capture_transformers import TransformersExtractor, decoder_layers
from specforge_dstill.data.chat import TokenSample
from specforge_dstill.evaluation.decoding import Decoded, Drafter, decode, decode_plainly
from specforge_dstill.evaluation.replay import Answer, walk
from specforge_dstill.evaluation.rules import Comparison, Rejection, Rule
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.evaluation.transformers_target import TransformersTarget
from specforge_dstill.modes.decoding import DecodingDrafter
from specforge_dstill.modes.replay import PassesDrafter
from tests import tiny
from tests.tiny import BLOCK_SIZE, HIDDEN, LAYERS, STOP_ID, VOCAB
from tests.trained import STEPS, Case, texts, train_drafter, training_samples

GREEDY = Comparison(Sampling())
# A second stop token, that answers often hold.
STOPS = (STOP_ID, 17)
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def target(case: Case) -> TransformersTarget:
    layers = decoder_layers(case.target.get_decoder())
    return TransformersTarget(case.target, [layers[layer] for layer in LAYERS])


def run(
    target: TransformersTarget,
    drafter: Drafter,
    prompt: Tensor,
    *,
    rule: Rule = GREEDY,
    new_tokens: int = NEW_TOKENS,
    stops: tuple[int, ...] = STOPS,
    seed: int = 0,
) -> Decoded:
    return decode(
        target,
        drafter,
        prompt,
        rule=rule,
        stop_ids=stops,
        max_new_tokens=new_tokens,
        generator=torch.Generator().manual_seed(seed),
    )


@pytest.fixture(scope="module")
def hundred(case: Case) -> list[tuple[Tensor, tuple[int, ...]]]:
    """100 prompts with what ``generate`` answers to them, those of one length at a time."""
    prompts = [case.prompt_ids([text]) for text in texts(90, seed=7)]
    generator = torch.Generator().manual_seed(0)
    for length in range(1, 11):
        prompts.append(torch.randint(4, VOCAB, (length,), generator=generator).tolist())
    prompts.sort(key=len)
    return [
        pair
        for _, same in itertools.groupby(prompts, key=len)
        for pair in own_answers(case.target, torch.tensor(list(same)))
    ]


def own_answers(
    target: Any, prompts: Tensor, *, new_tokens: int = NEW_TOKENS, stops: tuple[int, ...] = STOPS
) -> list[tuple[Tensor, tuple[int, ...]]]:
    """Prompts [N, S] with transformers' own greedy answers."""
    ids = target.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=list(stops),
        pad_token_id=0,
    )
    answers = []
    for prompt, row in zip(prompts, ids[:, prompts.shape[1] :].tolist(), strict=True):
        ends = [place for place, token in enumerate(row, start=1) if token in stops]
        answers.append((prompt, tuple(row[: ends[0]] if ends else row)))
    return answers


@pytest.mark.parametrize("name", ["trained", "spark"])
@pytest.mark.parametrize("steps", [1, STEPS])
def test_greedy_decoding_is_lossless_on_a_hundred_prompts(
    case: Case,
    target: TransformersTarget,
    hundred: list[tuple[Tensor, tuple[int, ...]]],
    steps: int,
    name: str,
) -> None:
    """Token for token what the target writes, and accepted as replay says; float32."""
    drafter = case.drafter(name)
    assert len(hundred) == 100
    found = [run(target, DecodingDrafter(drafter, steps), prompt) for prompt, _ in hundred]
    assert [decoded.tokens for decoded in found] == [expected for _, expected in hundred]
    replayed = walk(PassesDrafter(drafter, steps), answers_with_features(case, hundred))
    assert [decoded.accepted for decoded in found] == [one.accepted for one in replayed]
    # A healthy mix of answers and rounds.
    assert {decoded.tokens[-1] for decoded in found} > set(STOPS), "stopped by either, and cut"
    lengths = {length for decoded in found for length in decoded.accepted}
    assert len(lengths) >= 6
    assert max(lengths) == drafter.shape.positions - 1


@pytest.mark.parametrize("head", [head for head in tiny.HEADS if head != "rnn"])
def test_greedy_decoding_is_lossless_with_the_other_heads(
    case: Case,
    target: TransformersTarget,
    hundred: list[tuple[Tensor, tuple[int, ...]]],
    head: str,
) -> None:
    """As above, less trained: in one pass and in several, and accepted as replay says."""
    name, config = f"spark-{head}", f"draft-{head}.json"
    tiny.write_json(case.folder / config, tiny.draft_config(head=head))
    train_drafter(case, *training_samples(case), config=config, name=name, rounds=40)
    drafter = case.drafter(name)
    for steps, chosen in ((1, hundred), (STEPS, hundred[::5])):
        found = [run(target, DecodingDrafter(drafter, steps), prompt) for prompt, _ in chosen]
        assert [decoded.tokens for decoded in found] == [expected for _, expected in chosen]
        replayed = walk(PassesDrafter(drafter, steps), answers_with_features(case, chosen))
        assert [decoded.accepted for decoded in found] == [one.accepted for one in replayed]
        assert max(length for decoded in found for length in decoded.accepted) >= 3


@pytest.mark.parametrize("least", [0.3, 0.7])
def test_a_least_confidence_saves_the_target_tokens_and_changes_no_answer(
    case: Case,
    target: TransformersTarget,
    hundred: list[tuple[Tensor, tuple[int, ...]]],
    least: float,
) -> None:
    drafter, chosen = case.drafter("spark"), hundred[::5]
    whole, cut = (
        [run(target, DecodingDrafter(drafter, 1, None, floor), prompt) for prompt, _ in chosen]
        for floor in (None, least)
    )
    assert [decoded.tokens for decoded in cut] == [expected for _, expected in chosen]
    rounds = [sum(len(decoded.accepted) for decoded in found) for found in (whole, cut)]
    assert rounds[0] < rounds[1], "some drafts were cut before the target would have"


def answers_with_features(
    case: Case, answered: Sequence[tuple[Tensor, tuple[int, ...]]]
) -> list[Answer]:
    """For replay: features of the whole sequences, read at once."""
    rows = [torch.cat([prompt, torch.tensor(answer)]) for prompt, answer in answered]
    samples = [TokenSample(str(i), row, torch.ones_like(row)) for i, row in enumerate(rows)]
    features = TransformersExtractor(case.target, LAYERS)(samples)
    return [
        Answer(str(i), row, len(prompt), lambda f=f: f.hidden_states)
        for i, (row, (prompt, _), f) in enumerate(zip(rows, answered, features, strict=True))
    ]


@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("new_tokens", [1, 2, BLOCK_SIZE, BLOCK_SIZE + 1])
def test_an_answer_may_be_shorter_than_a_block(
    case: Case, target: TransformersTarget, steps: int, new_tokens: int
) -> None:
    """A prompt of one token, too. The target never reads past the answer's last place."""
    drafter = DecodingDrafter(case.drafter("trained"), steps)
    for prompt in (torch.tensor([9]), torch.tensor(case.prompt_ids(["w1 w2 w3"]))):
        (pair,) = own_answers(case.target, prompt[None], new_tokens=new_tokens, stops=(STOP_ID,))
        found = run(target, drafter, prompt, new_tokens=new_tokens, stops=(STOP_ID,))
        assert found.tokens == pair[1]
        assert sum(found.accepted) <= new_tokens - 1


def test_the_targets_window_is_enough(case: Case) -> None:
    """A block at the window's end is cut: learned positions end there."""
    torch.manual_seed(0)
    small = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_positions=20, n_embd=HIDDEN, n_layer=4, n_head=4)
    ).eval()
    prompt = torch.arange(4, 12)
    ((_, expected),) = own_answers(small, prompt[None], new_tokens=12, stops=(STOP_ID,))
    assert len(expected) == 12
    drafter = DecodingDrafter(case.drafter("untrained"), 1)
    recorded = [small.transformer.h[layer] for layer in LAYERS]
    found = run(
        TransformersTarget(small, recorded), drafter, prompt, new_tokens=12, stops=(STOP_ID,)
    )
    assert found.tokens == expected


def test_plain_decoding_is_the_targets_own(
    case: Case, target: TransformersTarget, hundred: list[tuple[Tensor, tuple[int, ...]]]
) -> None:
    for prompt, expected in hundred[::10]:
        found = decode_plainly(
            target, prompt, rule=GREEDY, stop_ids=STOPS, max_new_tokens=NEW_TOKENS
        )
        assert found.tokens == expected
        assert found.accepted == ()


@pytest.mark.parametrize("name", ["trained", "spark"])
@pytest.mark.parametrize("drawn", [False, True], ids=["comparison", "rejection"])
def test_sampling_that_is_almost_certain_is_greedy_decoding(
    case: Case,
    target: TransformersTarget,
    hundred: list[tuple[Tensor, tuple[int, ...]]],
    drawn: bool,
    name: str,
) -> None:
    cold = Sampling(temperature=1e-3)
    rule = Rejection(cold) if drawn else Comparison(cold)
    drafter = DecodingDrafter(case.drafter(name), 1, cold if drawn else None)
    for prompt, expected in hundred[::10]:
        assert run(target, drafter, prompt, rule=rule).tokens == expected


def test_the_same_seed_gives_the_same_answer(case: Case, target: TransformersTarget) -> None:
    warm = Sampling(temperature=1.0, top_p=0.9)
    drafter = DecodingDrafter(case.drafter("trained"), 1, warm)
    prompt = torch.tensor(case.prompt_ids(["w1 w2 w3"]))
    found = [
        run(target, drafter, prompt, rule=Rejection(warm), seed=seed).tokens for seed in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]
