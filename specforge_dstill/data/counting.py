"""Samples, tokens and blocks of a file of conversations or prompts, or of counts by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from specforge_dstill.data.chat import Encoder, RewrittenAnswersError
from specforge_dstill.data.conversations import Conversation, Message, Prompt
from specforge_dstill.data.estimate import Counts
from specforge_dstill.errors import UserError
from specforge_dstill.maths.anchors import valid_anchors

Update = Callable[[int], None]
Row = TypeVar("Row")


def spread(rows: Sequence[Row], count: int | None) -> list[Row]:
    """At most ``count`` of the rows, spread evenly over all of them."""
    if count is None or count >= len(rows):
        return list(rows)
    return [rows[i * len(rows) // count] for i in range(count)]


def count_conversations(
    conversations: Iterable[Conversation],
    encode: Encoder,
    *,
    anchors_per_sample: int | None,
    update: Update = lambda count: None,
) -> Counts:
    """Tokenize conversations and count; those that ``capture`` leaves out are left out here.

    Raises:
        UserError: no conversation gives a sample.
    """
    samples = tokens = scored = anchors = blocks = left_out = 0
    for conversation in conversations:
        update(1)
        try:
            sample = encode(conversation)
        except RewrittenAnswersError:
            left_out += 1
            continue
        if not sample.usable():
            left_out += 1
            continue
        valid = len(valid_anchors(sample.loss_mask))
        samples += 1
        tokens += len(sample)
        scored += int(sample.loss_mask.sum())
        anchors += valid
        blocks += _drawn(valid, anchors_per_sample)
    if samples == 0:
        raise UserError(
            f"none of the {left_out} conversations gives a sample that capture would keep"
        )
    return Counts(
        samples=samples,
        tokens=tokens,
        scored=scored,
        anchors=anchors,
        blocks=blocks,
        left_out=left_out,
        source=f"{samples + left_out:,} conversations, tokenized",
    )


def count_prompts(
    prompts: Iterable[Prompt],
    length_of: Callable[[Sequence[Message], str], int],
    *,
    answer_tokens: int,
    max_length: int,
    anchors_per_sample: int | None,
    update: Update = lambda count: None,
) -> Counts:
    """Counts when every turn is answered with ``answer_tokens`` tokens, stop token included.

    Args:
        length_of: tokens of a conversation as it is rendered for generation, and its name.
        max_length: samples are cut there.
    """
    samples = tokens = scored = anchors = blocks = left_out = 0
    for prompt in prompts:
        update(1)
        size = kept = valid = 0
        for turn, text in enumerate(prompt.turns):
            messages = [Message("user", text)]
            if turn == 0 and prompt.system is not None:
                messages.insert(0, Message("system", prompt.system))
            size += length_of(messages, prompt.id)
            inside = min(answer_tokens, max(0, max_length - size))
            kept += inside
            valid += max(0, inside - 1)
            size += answer_tokens
        if valid == 0:
            left_out += 1
            continue
        samples += 1
        tokens += min(size, max_length)
        scored += kept
        anchors += valid
        blocks += _drawn(valid, anchors_per_sample)
    if samples == 0:
        raise UserError(f"none of the {left_out} prompts leaves room for an answer of two tokens")
    return Counts(
        samples=samples,
        tokens=tokens,
        scored=scored,
        anchors=anchors,
        blocks=blocks,
        left_out=left_out,
        source=f"{samples + left_out:,} prompts, tokenized, {answer_tokens:,} tokens an answer",
    )


def counts_by_hand(
    *, samples: int, tokens_per_sample: int, anchors_per_sample: int | None
) -> Counts:
    """Counts as given. Without a number of anchors every token but the last starts a block."""
    per_sample = _drawn(tokens_per_sample - 1, anchors_per_sample)
    return Counts(
        samples=samples,
        tokens=samples * tokens_per_sample,
        blocks=samples * per_sample,
        source=f"{samples:,} samples x {tokens_per_sample:,} tokens, given",
    )


def _drawn(valid: int, anchors_per_sample: int | None) -> int:
    return valid if anchors_per_sample is None else min(valid, anchors_per_sample)
