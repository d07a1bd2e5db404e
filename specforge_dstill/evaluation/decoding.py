"""Speculative decoding of one sequence, and the target's plain decoding beside it.

Target and drafter are two small protocols; each keeps a cache of its own, which only grows by
what is new: the target's by accepted tokens, the drafter's by the features of accepted tokens.

Shapes: S prompt, B block size, n tokens read at once, V vocabulary, W width of the features.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from specforge_dstill.evaluation.rules import Draft, Rule
from specforge_dstill.evaluation.stopwatch import Seconds, Stopwatch
from specforge_dstill.maths.verification import Accepted


@dataclass(frozen=True)
class Read:
    """What a target gives for n tokens that it has read.

    Attributes:
        logits: [n, V], or [1, V] for the last token only.
        states: [n, W], the features that drafters read; None if they were not asked for.
    """

    logits: Tensor
    states: Tensor | None


class TargetSession(Protocol):
    """A target that reads one sequence and remembers it."""

    def read(self, tokens: Tensor, *, every_logit: bool, states: bool) -> Read:
        """Go on with ``tokens`` [n], in one pass."""

    def roll_back(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""


class Target(Protocol):
    """A model that drafts are made for."""

    def begin(self) -> TargetSession:
        """A new sequence."""


class DraftSession(Protocol):
    """A drafter that follows one sequence."""

    def draft(self, states: Tensor, anchor: Tensor, generator: torch.Generator | None) -> Draft:
        """The tokens after ``anchor`` [1].

        ``states`` [n, W] are those of the tokens since the last draft, up to the anchor and
        without it.
        """


class Drafter(Protocol):
    """A drafter with its number of passes."""

    def begin(self) -> DraftSession:
        """A new sequence."""


@dataclass(frozen=True)
class Decoded:
    """An answer and how it came about.

    Attributes:
        tokens: with the stop token, if it ends with one.
        accepted: the accepted prefix L of each round, 0..B-1; drafted tokens past the end of
            the answer do not count. Empty for plain decoding.
        seconds: of the whole answer, the prompt's reading included.
    """

    tokens: tuple[int, ...]
    accepted: tuple[int, ...]
    seconds: Seconds


@dataclass
class _Answer:
    """An answer that grows until its stop token or its full length."""

    stop_ids: Collection[int]
    max_new_tokens: int
    tokens: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        """How many tokens may still come; 0 when it is complete."""
        if self.tokens and self.tokens[-1] in self.stop_ids:
            return 0
        return self.max_new_tokens - len(self.tokens)

    def add(self, tokens: list[int]) -> int:
        """Take tokens until the answer is complete; how many."""
        for count, token in enumerate(tokens):
            if self.room == 0:
                return count
            self.tokens.append(token)
        return len(tokens)


@torch.inference_mode()
def decode(
    target: Target,
    drafter: Drafter,
    prompt: Tensor,
    *,
    rule: Rule,
    stop_ids: Collection[int],
    max_new_tokens: int,
    generator: torch.Generator | None = None,
) -> Decoded:
    """Answer ``prompt`` [S], S > 0, by drafting and verifying.

    No more is verified than the answer has room for, so the target never reads past
    ``S + max_new_tokens``.

    Args:
        generator: on the prompt's device; needed to sample.
    """
    watch = Stopwatch(prompt.device)
    reading, drafting = target.begin(), drafter.begin()
    answer = _Answer(stop_ids, max_new_tokens)
    accepted: list[int] = []
    read = reading.read(prompt, every_logit=False, states=True)
    anchor, states, length = rule.pick(read.logits, generator), read.states, len(prompt)
    answer.add(anchor.tolist())
    watch.lap("prefill")
    while answer.room > 0:
        assert states is not None, "asked for"
        draft = drafting.draft(states, anchor, generator).first(answer.room)
        watch.lap("draft")
        block = torch.cat([anchor, draft.tokens])
        read = reading.read(block, every_logit=True, states=True)
        verdict = rule.judge(draft, read.logits, generator)
        count, tokens = _to_host(verdict, draft)
        watch.lap("verify")
        accepted.append(min(count, answer.add(tokens)))
        length += count + 1
        reading.roll_back(length)
        assert read.states is not None, "asked for"
        anchor, states = verdict.next_tokens, read.states[: count + 1]
        watch.lap("other")
    return Decoded(tuple(answer.tokens), tuple(accepted), watch.seconds())


def _to_host(verdict: Accepted, draft: Draft) -> tuple[int, list[int]]:
    """How many drafted tokens are accepted, and these with the target's own: one transfer."""
    together = torch.cat([verdict.lengths, verdict.next_tokens, draft.tokens])
    count, following, *drafted = together.tolist()
    return count, [*drafted[:count], following]


@torch.inference_mode()
def decode_plainly(
    target: Target,
    prompt: Tensor,
    *,
    rule: Rule,
    stop_ids: Collection[int],
    max_new_tokens: int,
    generator: torch.Generator | None = None,
) -> Decoded:
    """Answer ``prompt`` [S] one token a step, with the same target: what decoding is against."""
    watch = Stopwatch(prompt.device)
    reading = target.begin()
    answer = _Answer(stop_ids, max_new_tokens)
    read = reading.read(prompt, every_logit=False, states=False)
    token = rule.pick(read.logits, generator)
    answer.add(token.tolist())
    watch.lap("prefill")
    while answer.room > 0:
        read = reading.read(token, every_logit=False, states=False)
        token = rule.pick(read.logits, generator)
        answer.add(token.tolist())
        watch.lap("verify")
    return Decoded(tuple(answer.tokens), (), watch.seconds())
