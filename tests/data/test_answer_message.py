"""An answer goes back into its conversation as the target's template takes it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specforge_dstill.data.answer_message import answer_message, split_harmony
from specforge_dstill.data.chat import prompt_tokens
from specforge_dstill.data.conversations import Message

from .conftest import make_tokenizer

ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
# As GPT-OSS's: marks are refused, and the reasoning of earlier turns is not shown.
TEMPLATE = (
    "{% for m in messages %}"
    "{% if '<|channel|>' in m.content or '<|channel|>' in m.get('thinking', '') %}"
    "{{ raise_exception('channel tags in the content field') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (f"{FINAL}Four.", None, "Four."),
        (f"{ANALYSIS}2 < 3\n+{NEXT}{FINAL}Four.\n\nYes", "2 < 3\n+", "Four.\n\nYes"),
        (f"{ANALYSIS}cut off", "cut off", ""),
        (f"{ANALYSIS}thought{NEXT}", "thought", ""),
        (f"{ANALYSIS}thought{NEXT}<|channel|>final", "thought", ""),
        (f"{ANALYSIS}thought{NEXT}{FINAL}", "thought", ""),
        (f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c", "a\nb", "c"),
        (f"{ANALYSIS}a{NEXT}<|channel|>commentary to=x <|constrain|>json<|message|>{{}}",
         "a\n{}", ""),
        (f"<|channel|>final <|constrain|>json<|message|>{{}}{NEXT}", None, "{}"),
        ("Four, as <|channel|> says.", None, "Four, as <|channel|> says."),
        ("<think>\nhm\n</think>\n\nFour.", None, "<think>\nhm\n</think>\n\nFour."),
        ("", None, ""),
    ],
)  # fmt: skip
def test_reasoning_and_answer_of_harmony_are_told_apart(
    text: str, reasoning: str | None, content: str
) -> None:
    assert split_harmony(text) == (reasoning, content)


def test_a_second_turn_can_follow_an_answer_with_channels() -> None:
    said = f"{ANALYSIS}w1{NEXT}{FINAL}w2"
    decoding = SimpleNamespace(decode=lambda ids, skip_special_tokens: said)
    answer = answer_message(decoding, [5, 6, 9], stop_ids=(9,))
    assert answer == Message("assistant", "w2", "w1")
    assert answer_message(decoding, [5, 6], stop_ids=(9,)).finish == "length"
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    talk = [Message("user", "w0"), answer, Message("user", "w3")]
    ids = prompt_tokens(tokenizer, talk, {}, name="a")
    assert ids == [1, 7, 6, 10, 2, 1, 8, 6, 12, 2, 1, 7, 6, 13, 2]
