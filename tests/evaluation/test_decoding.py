"""The decoding loop, by hand, with a scripted target and drafter."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from specforge_dstill.evaluation.decoding import Read, decode, decode_plainly
from specforge_dstill.evaluation.rules import Comparison, Draft, Rejection
from specforge_dstill.evaluation.sampling import Sampling

GREEDY = Comparison(Sampling())
BLOCK, WRONG, VOCAB = 4, 99, 100


@dataclass
class Script:
    """A target that writes a fixed text, and a drafter that errs where it is told to.

    ``right`` tells how many leading tokens are drafted right at an anchor's position; all by
    default. ``reads`` and ``drafts`` record what each was given.
    """

    text: list[int]
    right: dict[int, int] = field(default_factory=dict)
    reads: list[tuple[int, list[int]]] = field(default_factory=list)
    drafts: list[tuple[list[int], int]] = field(default_factory=list)

    def begin(self) -> ScriptSession:
        return ScriptSession(self)

    @property
    def drafter(self) -> ScriptedDrafter:
        return ScriptedDrafter(self)


class ScriptSession:
    def __init__(self, script: Script) -> None:
        self.script, self.length = script, 0

    def read(self, tokens: Tensor, *, every_logit: bool, states: bool) -> Read:
        self.script.reads.append((self.length, tokens.tolist()))
        places = range(self.length, self.length + len(tokens))
        self.length += len(tokens)
        following = [*self.script.text, *[WRONG] * BLOCK]
        wanted = torch.tensor([following[place + 1] for place in places])
        logits = torch.nn.functional.one_hot(wanted, VOCAB).float()
        features = torch.tensor(list(places))[:, None].float()
        return Read(logits if every_logit else logits[-1:], features if states else None)

    def roll_back(self, length: int) -> None:
        assert length <= self.length
        self.length = length


@dataclass
class ScriptedDrafter:
    script: Script
    known: int = 0

    def begin(self) -> ScriptedDrafter:
        return ScriptedDrafter(self.script)

    def draft(self, states: Tensor, anchor: Tensor, generator: torch.Generator | None) -> Draft:
        self.script.drafts.append((states[:, 0].long().tolist(), int(anchor)))
        self.known += len(states)
        assert self.script.text[self.known] == int(anchor)
        block = [*self.script.text, *[WRONG] * BLOCK][self.known + 1 : self.known + BLOCK]
        right = self.script.right.get(self.known, BLOCK)
        return Draft(torch.tensor([t if i < right else WRONG for i, t in enumerate(block)]))


def run(script: Script, start: int, *, new_tokens: int = 50, stop: int = 49) -> tuple[int, ...]:
    prompt = torch.tensor(script.text[:start])
    found = decode(
        script, script.drafter, prompt, rule=GREEDY, stop_ids={stop}, max_new_tokens=new_tokens
    )
    expected = script.text[start : start + new_tokens]
    assert list(found.tokens) == expected
    plain = decode_plainly(
        Script(script.text), prompt, rule=GREEDY, stop_ids={stop}, max_new_tokens=new_tokens
    )
    assert plain.tokens == found.tokens
    return found.accepted


def test_rounds_by_hand() -> None:
    # Prompt 10 11, answer 12 … 19 and the stop token at position 10.
    script = Script([*range(10, 20), 49], right={2: 1, 4: 0, 5: 2})
    # Anchor 2: one accepted, the target gives position 4. There none, then 5: two, then 8: both
    # tokens that are left, the stop token among them; one drafted past it does not count.
    assert run(script, 2) == (1, 0, 2, 2)
    starts = [(start, len(tokens)) for start, tokens in script.reads]
    assert starts == [(0, 2), (2, 4), (4, 4), (5, 4), (8, 4)]


def test_the_drafter_is_given_each_feature_once_and_the_target_reads_nothing_again() -> None:
    script = Script([*range(10, 40), 49], right={5: 1, 7: 0, 12: 2})
    run(script, 5)
    given = [place for states, _ in script.drafts for place in states]
    assert given == list(range(len(given)))
    for (_, anchor), (start, tokens) in zip(script.drafts, script.reads[1:], strict=True):
        assert tokens[0] == anchor == script.text[start]


@pytest.mark.parametrize("new_tokens", range(1, 12))
def test_no_more_is_verified_than_there_is_room_for(new_tokens: int) -> None:
    script = Script(list(range(10, 40)))
    accepted = run(script, 3, new_tokens=new_tokens)
    assert max(start + len(tokens) for start, tokens in script.reads) <= 3 + new_tokens
    # As replay counts: the first token is the target's, a round gives at most B.
    assert len(accepted) == -(-(new_tokens - 1) // BLOCK)
    assert all(count == BLOCK - 1 for count in accepted[:-1])


@pytest.mark.parametrize("start", [1, 4])
def test_an_answer_of_one_token_needs_no_round(start: int) -> None:
    assert run(Script([*range(10, 10 + start), 49]), start) == ()
    assert run(Script(list(range(10, 30))), start, new_tokens=1) == ()


def test_a_stop_token_in_the_middle_of_a_block_ends_the_answer() -> None:
    script = Script([10, 11, 12, 49, 13, 14, 15])
    found = decode(
        script,
        script.drafter,
        torch.tensor([10]),
        rule=GREEDY,
        stop_ids=(48, 49),
        max_new_tokens=20,
    )
    assert found.tokens == (11, 12, 49)
    assert found.accepted == (2,)


def test_time_is_divided_among_the_phases() -> None:
    script = Script([*range(10, 40), 49])
    options = {"rule": GREEDY, "stop_ids": (49,), "max_new_tokens": 40}
    spent = decode(script, script.drafter, torch.tensor([10]), **options).seconds
    assert min(spent.prefill, spent.draft, spent.verify, spent.other) > 0
    assert spent.total == spent.prefill + spent.draft + spent.verify + spent.other
    plain = decode_plainly(script, torch.tensor([10]), **options).seconds
    assert plain.draft == plain.other == 0
    assert plain.verify > 0


def test_rejection_without_what_it_needs() -> None:
    rule = Rejection(Sampling(temperature=1.0))
    with pytest.raises(ValueError, match="needs the draft's probabilities"):
        rule.judge(Draft(torch.tensor([1])), torch.zeros(2, 5), torch.Generator())
    with pytest.raises(ValueError, match="temperature 0 has none"):
        Rejection(Sampling())
