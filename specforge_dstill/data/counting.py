"""Samples, tokens and blocks of a file of conversations or prompts, or of counts by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from specforge_dstill.data.chat import Encoder
from specforge_dstill.data.conversations import Conversation, Message, Prompt
from specforge_dstill.data.estimate import Counts
from specforge_dstill.data.left_out import LeftOutError
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
    tally = _Tally(anchors_per_sample)
    for conversation in conversations:
        update(1)
        try:
            sample = encode(conversation)
        except LeftOutError:
            tally.left_out += 1
            continue
        if not sample.usable():
            tally.left_out += 1
            continue
        valid = len(valid_anchors(sample.loss_mask))
        tally.add(tokens=len(sample), scored=int(sample.loss_mask.sum()), anchors=valid)
    if tally.samples == 0:
        raise UserError(
            f"none of the {tally.left_out} conversations gives a sample that capture would keep"
        )
    return tally.counts("{:,} conversations, tokenized")


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
    tally = _Tally(anchors_per_sample)
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
            tally.left_out += 1
            continue
        tally.add(tokens=min(size, max_length), scored=kept, anchors=valid)
    if tally.samples == 0:
        raise UserError(
            f"none of the {tally.left_out} prompts leaves room for an answer of two tokens"
        )
    return tally.counts(f"{{:,}} prompts, tokenized, {answer_tokens:,} tokens an answer")


def counts_by_hand(
    *,
    samples: int,
    tokens_per_sample: int,
    anchors_per_sample: int | None,
    max_length: int | None = None,
) -> Counts:
    """Counts as given. Without a number of anchors every token but the last starts a block.

    Args:
        max_length: samples are cut there; None where it is not known.
    """
    source = f"{samples:,} samples x {tokens_per_sample:,} tokens, given"
    if max_length is not None and tokens_per_sample > max_length:
        tokens_per_sample = max_length
        source += f", cut to data.max_length {max_length:,}"
    per_sample = _drawn(tokens_per_sample - 1, anchors_per_sample)
    return Counts(
        samples=samples,
        tokens=samples * tokens_per_sample,
        blocks=samples * per_sample,
        source=source,
    )


def _drawn(valid: int, anchors_per_sample: int | None) -> int:
    return valid if anchors_per_sample is None else min(valid, anchors_per_sample)


@dataclass
class _Tally:
    """Running sums over samples."""

    anchors_per_sample: int | None
    samples: int = 0
    tokens: int = 0
    scored: int = 0
    anchors: int = 0
    blocks: int = 0
    left_out: int = 0

    def add(self, *, tokens: int, scored: int, anchors: int) -> None:
        self.samples += 1
        self.tokens += tokens
        self.scored += scored
        self.anchors += anchors
        self.blocks += _drawn(anchors, self.anchors_per_sample)

    def counts(self, source: str) -> Counts:
        """The sums; ``source`` has a place for how many rows were read."""
        return Counts(
            samples=self.samples,
            tokens=self.tokens,
            scored=self.scored,
            anchors=self.anchors,
            blocks=self.blocks,
            left_out=self.left_out,
            source=source.format(self.samples + self.left_out),
        )
