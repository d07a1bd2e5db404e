"""A generated answer as a message of its conversation, so that a next turn can follow it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from specforge_dstill.data.chat import answer_text
from specforge_dstill.data.conversations import Message

#: A part of an answer in OpenAI's harmony format, which GPT-OSS speaks: its channel, its text.
_PART = re.compile(
    r"<\|channel\|>(\w+)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
    r"(.*?)(?=<\|(?:end|return|call|start|channel)\|>|\Z)",
    re.DOTALL,
)


def answer_message(tokenizer: Any, ids: Sequence[int], stop_ids: Sequence[int]) -> Message:
    """The message of a generated answer's token ids, its reasoning apart where that is marked.

    GPT-OSS's template takes no answer with its marks in it. Answers with <think>…</think> stay
    whole: their templates cut the reasoning out themselves.
    """
    reasoning, content = split_harmony(answer_text(tokenizer, ids, stop_ids))
    finish = None if ids[-1] in stop_ids else "length"
    return Message("assistant", content, reasoning, finish)


def split_harmony(text: str) -> tuple[str | None, str]:
    """Reasoning (None without) and final text of an answer; other answers are all final text.

    What is on another channel than "final" (analysis, commentary) counts as reasoning.
    """
    if not text.startswith("<|channel|>"):
        return None, text
    parts = _PART.findall(text)
    reasoning = "\n".join(said for channel, said in parts if channel != "final")
    return reasoning or None, "".join(said for channel, said in parts if channel == "final")
