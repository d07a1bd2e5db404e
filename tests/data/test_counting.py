"""Counting samples, tokens and blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from specforge_dstill.data.chat import TokenSample
from specforge_dstill.data.conversations import Conversation, Message, Prompt
from specforge_dstill.data.counting import (
    count_conversations,
    count_prompts,
    counts_by_hand,
    spread,
)
from specforge_dstill.data.left_out import (
    LeftOutError,
    RefusedByTemplateError,
    RewrittenAnswersError,
)
from specforge_dstill.errors import UserError

MASKS = {
    "a": [0, 0, 1, 1, 1, 0],  # anchors 2, 3
    "b": [0, 1, 0, 1, 0],  # no two neighbours: left out
    "c": [1, 1, 1, 1, 0, 1, 1],  # anchors 0, 1, 2, 5
}


LEFT_OUT: dict[str, LeftOutError] = {
    "rewritten": RewrittenAnswersError("rewritten"),
    "refused": RefusedByTemplateError("refused", ValueError("roles must alternate")),
}


def encode(conversation: Conversation) -> TokenSample:
    if conversation.id in LEFT_OUT:
        raise LEFT_OUT[conversation.id]
    mask = torch.tensor(MASKS[conversation.id])
    return TokenSample(conversation.id, torch.arange(len(mask)), mask)


def conversations(*names: str) -> list[Conversation]:
    return [Conversation(name, (Message("assistant", "x"),)) for name in names]


def test_conversations_by_hand() -> None:
    told: list[int] = []
    found = count_conversations(
        conversations("a", "b", "rewritten", "refused", "c"),
        encode,
        anchors_per_sample=3,
        update=told.append,
    )
    assert (found.samples, found.left_out) == (2, 3)
    assert (found.tokens, found.scored, found.anchors) == (6 + 7, 3 + 6, 2 + 4)
    assert found.blocks == 2 + 3  # at most three of the four
    assert sum(told) == 5
    every = count_conversations(conversations("a", "c"), encode, anchors_per_sample=None)
    assert every.blocks == every.anchors == 6
    with pytest.raises(UserError, match="none of the 1 conversations"):
        count_conversations(conversations("b"), encode, anchors_per_sample=None)


def length_of(messages: Sequence[Message], _name: str) -> int:
    """A token a letter and two around each message."""
    return sum(len(message.content) + 2 for message in messages)


def test_prompts_by_hand() -> None:
    prompts = [
        Prompt("one", ("abc",)),  # 5 + 10
        Prompt("two", ("abc", "de"), system="s"),  # (3 + 5) + 10, then 4 + 10: 32, cut at 30
        Prompt("long", ("x" * 40,)),  # no room for an answer
    ]
    found = count_prompts(
        prompts, length_of, answer_tokens=10, max_length=30, anchors_per_sample=None
    )
    assert (found.samples, found.left_out) == (2, 1)
    assert found.tokens == 15 + 30
    assert found.scored == 10 + 10 + 8
    assert found.anchors == found.blocks == 9 + 9 + 7
    with pytest.raises(UserError, match="none of the 1 prompts"):
        count_prompts(
            prompts[2:], length_of, answer_tokens=10, max_length=30, anchors_per_sample=None
        )


def test_counts_by_hand() -> None:
    found = counts_by_hand(samples=10, tokens_per_sample=100, anchors_per_sample=None)
    assert (found.tokens, found.blocks) == (1000, 990)
    found = counts_by_hand(samples=10, tokens_per_sample=100, anchors_per_sample=7)
    assert (found.blocks, found.scored) == (70, None)


def test_a_spread_is_even_and_complete() -> None:
    assert spread(range(10), None) == spread(range(10), 12) == list(range(10))
    assert spread(range(10), 4) == [0, 2, 5, 7]
    assert spread([], 3) == []
