"""Exact greedy acceptance without decoding.

Greedy speculative decoding is lossless: whatever the drafter, the target writes its own greedy
answer. So the answer and its hidden states are computed once, and any drafter is then scored by
walking the answer: draft at the anchor, count the drafted tokens that equal the answer's, go on
at the token after them, which the target supplies.

Shapes: b answers walked together, S sequence, W feature width, B block size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specforge_dstill.maths.acceptance import accepted_prefix


@dataclass(frozen=True)
class Answer:
    """A prompt with the target's greedy answer.

    Attributes:
        name: for messages and per-prompt results.
        input_ids: [S] int64, prompt and answer.
        start: position of the answer's first token, which the target itself supplies.
        features: reads the target's features, [S, W]. Called once a walk, so that no more than
            a batch's are in memory.
    """

    name: str
    input_ids: Tensor
    start: int
    features: Callable[[], Tensor]


class Session(Protocol):
    """A drafter over a fixed batch of contexts."""

    def draft(self, anchors: Tensor, anchor_ids: Tensor) -> Tensor:
        """Draft a block in each context: positions and tokens [b] -> proposals [b, B-1]."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these contexts only; [b'] int64."""


class ReplayDrafter(Protocol):
    """A drafter with its number of passes."""

    @property
    def block_size(self) -> int:
        """B."""

    def begin(self, hidden_states: Tensor) -> Session:
        """Read a batch of contexts, [b, S, W], padded behind."""


@dataclass(frozen=True)
class Walk:
    """How one answer was decoded: the accepted prefix L of each round, 0..B-1."""

    name: str
    accepted: tuple[int, ...]


def walk(
    drafter: ReplayDrafter,
    answers: Sequence[Answer],
    *,
    batch_size: int = 32,
    update: Callable[[int], None] = lambda count: None,
) -> list[Walk]:
    """Walk every answer; the result is in the order of ``answers``.

    A round's accepted prefix ends with the answer: tokens drafted past its last token (the stop
    token, or the length limit) are not counted. An answer of one token needs no round.

    Args:
        batch_size: answers walked together; answers of like length share a batch.
        update: told of the answers done, batch by batch.
    """
    order = sorted(range(len(answers)), key=lambda i: len(answers[i].input_ids) - answers[i].start)
    walks: dict[int, Walk] = {}
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        batch = [answers[index] for index in chosen]
        for index, answer, accepted in zip(chosen, batch, _walk_batch(drafter, batch), strict=True):
            walks[index] = Walk(answer.name, tuple(accepted))
        update(len(batch))
    return [walks[index] for index in range(len(answers))]


def _walk_batch(drafter: ReplayDrafter, answers: Sequence[Answer]) -> list[list[int]]:
    """The accepted prefixes of each answer, all walked together."""
    accepted: list[list[int]] = [[] for _ in answers]
    session = drafter.begin(
        pad_sequence([answer.features() for answer in answers], batch_first=True)
    )
    active = torch.arange(len(answers))
    anchors = torch.tensor([answer.start for answer in answers])
    last = torch.tensor([len(answer.input_ids) - 1 for answer in answers])
    while True:
        going_on = anchors < last
        if not going_on.all():
            rows = going_on.nonzero().squeeze(1)
            active, anchors, last = active[rows], anchors[rows], last[rows]
            session.keep(rows)
        if len(active) == 0:
            return accepted
        tokens = torch.stack(
            [
                _window(answers[index].input_ids, int(anchor), drafter.block_size)
                for index, anchor in zip(active.tolist(), anchors, strict=True)
            ]
        )
        proposals = session.draft(anchors, tokens[:, 0])
        lengths = accepted_prefix(proposals == tokens[:, 1:])
        for index, length in zip(active.tolist(), lengths.tolist(), strict=True):
            accepted[index].append(length)
        anchors = anchors + lengths + 1


def _window(input_ids: Tensor, start: int, size: int) -> Tensor:
    """``size`` tokens from ``start``; -1, which no proposal equals, past the end."""
    window = torch.full((size,), -1)
    tokens = input_ids[start : start + size]
    window[: len(tokens)] = tokens
    return window


def mean_acceptance(walks: Sequence[Walk]) -> float:
    """``tau = 1 + E[L]`` over all rounds of a data set; NaN without a round."""
    rounds = [length for walk in walks for length in walk.accepted]
    return 1 + sum(rounds) / len(rounds) if rounds else float("nan")


def acceptance_by_position(walks: Sequence[Walk], *, block_size: int) -> list[float]:
    """Share of rounds that accept at least i drafted tokens, i = 1..B-1; NaN without a round."""
    rounds = torch.tensor([length for walk in walks for length in walk.accepted])
    if len(rounds) == 0:
        return [float("nan")] * (block_size - 1)
    positions = torch.arange(1, block_size)
    return (rounds[:, None] >= positions).double().mean(dim=0).tolist()
