"""The target alone and with a drafter in our own decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from answers import Answers, as_tokens

from specforge_dstill.data import chat, targets
from specforge_dstill.data.conversations import Message
from specforge_dstill.evaluation.decoding import Decoded
from specforge_dstill.evaluation.rules import Comparison
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.evaluation.speed import PLAIN
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.verbs.decode_ways import make_ways, way_name


@dataclass(frozen=True)
class Here:
    """Our decoder.

    Attributes:
        counted: a drafter's answers, drafted tokens past their end left out, as we count.
        uncut: the accepted tokens with those past the end of an answer.
        stopped: answers that end with a drafted stop token.
        greedy: the target's own answers.
    """

    counted: Answers
    uncut: int
    stopped: int
    greedy: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Prompts:
    """Messages of a user, and each as the target reads it."""

    messages: list[str]
    ids: list[list[int]]
    stop_ids: list[int]

    @classmethod
    def of(cls, target: str, messages: list[str]) -> Prompts:
        tokenizer = targets.load_tokenizer(target)
        ids = [
            list(chat.prompt_tokens(tokenizer, [Message("user", text)], {}, name=text))
            for text in messages
        ]
        return cls(messages, ids, list(chat.stop_token_ids(target, tokenizer)))


def decode_here(
    model: Any,
    drafter: BlockDrafter,
    layers: Sequence[int],
    prompts: Prompts,
    *,
    max_new_tokens: int,
) -> Here:
    """Answer every prompt alone, with the drafter, and once more past the answer's end."""
    ways = {
        stops: make_ways(
            model,
            layers,
            {("drafter", 1): drafter},
            rule=Comparison(Sampling(0.0)),
            stop_ids=prompts.stop_ids if stops else [],
        )
        for stops in (True, False)
    }
    name = way_name("drafter", 1)

    def run(way: str, ids: list[int], count: int, *, stops: bool = True) -> Decoded:
        return ways[stops][way](torch.tensor(ids), count, torch.Generator())

    plain = [run(PLAIN, ids, max_new_tokens) for ids in prompts.ids]
    drafted = [run(name, ids, max_new_tokens) for ids in prompts.ids]
    on = [
        run(name, ids, len(one.tokens) + drafter.shape.positions, stops=False)
        for ids, one in zip(prompts.ids, drafted, strict=True)
    ]
    pairs = list(zip(drafted, on, strict=True))
    counted = Answers(
        "specforge_dstill",
        as_tokens(one.tokens for one in drafted),
        sum(len(one.accepted) for one in drafted),
        sum(sum(one.accepted) for one in drafted),
    )
    return Here(
        counted,
        uncut=sum(sum(more.accepted[: len(one.accepted)]) for one, more in pairs),
        # The anchor is the first token, each round adds its accepted tokens and one of the
        # target's: an answer that is one short ends with a drafted token.
        stopped=sum(len(one.tokens) == len(one.accepted) + sum(one.accepted) for one in drafted),
        greedy=as_tokens(one.tokens for one in plain),
    )
