"""Where the answers of a conversation stand in its rendered text, and which tokens they are."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specforge_dstill.data.conversations import Conversation, Message

#: Messages and whether an answer is to be generated next, to text: a chat template.
Render = Callable[[Sequence[Message], bool], str]


@dataclass(frozen=True)
class AnswerSpan:
    """Characters [start, limit) of one answer; ``content_end`` is where its text ends.

    ``text_only`` tells that what comes after the text is not the target's: see ``tokens``.
    """

    start: int
    content_end: int
    limit: int
    text_only: bool

    def tokens(
        self, ids: Sequence[int], offsets: Sequence[tuple[int, int]], stop_ids: Sequence[int]
    ) -> range:
        """Positions of the answer's tokens, its first stop token included.

        An answer cut off by the length limit has no stop token, nor has one whose template
        closes it with a token at which the target does not stop: then the text alone counts. So
        it does where tool calls follow, which the template writes in its own way.
        """
        inside = [i for i, (a, b) in enumerate(offsets) if a >= self.start and b <= self.limit]
        if not inside:
            return range(0)
        first, last = inside[0], inside[-1]
        if not self.text_only:
            for position in range(first, last + 1):
                if ids[position] in stop_ids:
                    return range(first, position + 1)
            warnings.warn(
                "the chat template closes an answer with no stop token of the target "
                f"({list(stop_ids)}); only the answers' texts are scored",
                stacklevel=2,
            )
        while last >= first and offsets[last][1] > self.content_end:
            last -= 1
        return range(first, last + 1)


def answered(conversation: Conversation, *, last_only: bool = False) -> list[int]:
    """Places of the answers that have a text; with ``last_only`` of the very last one alone."""
    messages = conversation.messages
    answers = [i for i, message in enumerate(messages) if message.role == "assistant"]
    return [i for i in (answers[-1:] if last_only else answers) if messages[i].content.strip()]


def answer_spans(
    conversation: Conversation, answers: Sequence[int], render: Render
) -> tuple[str, list[AnswerSpan]]:
    """The rendered text and those of the ``answers`` in it that stand as the target gave them.

    An answer counts when the prompt before it, rendered as for generation, and the answer
    right after it are both still there in the whole text: templates that strip the thinking
    of earlier turns fail this for the earlier turns, which are then left unscored.
    """
    messages = conversation.messages
    text = render(messages, False)
    spans = []
    for i in answers:
        message = messages[i]
        prompt, through = render(messages[:i], True), render(messages[: i + 1], False)
        limit = _common_length(through, text)
        end = _end_of(message.content, text, len(prompt), limit)
        if end is not None and text.startswith(prompt) and through.startswith(prompt):
            text_only = message.finish == "length" or message.tool_calls is not None
            spans.append(AnswerSpan(len(prompt), end, limit, text_only))
    return text, spans


def _common_length(first: str, second: str) -> int:
    """How many characters two texts share from their start."""
    if second.startswith(first):
        return len(first)
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _end_of(content: str, text: str, start: int, limit: int) -> int | None:
    """Where ``content`` ends in ``text[start:limit]``, None when it is not there.

    Templates may trim the white space around an answer or around its thinking.
    """
    exact = content.strip()
    at = text.find(exact, start, limit)
    if at >= 0:
        return at + len(exact)
    found = re.compile(r"\s*".join(map(re.escape, content.split()))).search(text, start, limit)
    return found.end() if found else None
