"""What an estimate counts: a file of conversations or prompts, or numbers given by hand."""

from __future__ import annotations

import argparse
from functools import partial

from specforge_dstill.data.capture_plan import CapturePlan
from specforge_dstill.data.chat import prompt_tokens
from specforge_dstill.data.conversations import Message, read_conversations, read_prompts
from specforge_dstill.data.counting import (
    count_conversations,
    count_prompts,
    counts_by_hand,
    spread,
)
from specforge_dstill.data.encoding import Encoding
from specforge_dstill.data.estimate import Counts
from specforge_dstill.data.progress import Progress
from specforge_dstill.errors import UserError
from specforge_dstill.verbs.estimate_settings import Settings

_BY_HAND = "--samples and --tokens-per-sample"


def count(args: argparse.Namespace, settings: Settings) -> Counts:
    """The samples: of a file, or as given. UserError unless exactly one of them is named."""
    by_hand = args.samples is not None or args.tokens_per_sample is not None
    named = [args.conversations is not None, args.prompts is not None, by_hand]
    if sum(named) != 1:
        raise UserError(
            f"say what to count, in one way: --conversations FILE, --prompts FILE, or {_BY_HAND}"
        )
    if by_hand:
        if args.samples is None or args.tokens_per_sample is None:
            raise UserError(f"counts by hand are {_BY_HAND}, both of them")
        return counts_by_hand(
            samples=args.samples,
            tokens_per_sample=args.tokens_per_sample,
            anchors_per_sample=settings.anchors,
            max_length=None if settings.run is None else settings.run.config.data.max_length,
        )
    return (_of_conversations if args.conversations is not None else _of_prompts)(args, settings)


def plan_of(settings: Settings, what: str) -> CapturePlan:
    """The capture's plan, for which the target's configuration is read.

    Raises:
        UserError: there is no run file, so no target.
    """
    if settings.run is None:
        raise UserError(
            f"{what} needs the target: name a run file with --config, or give {_BY_HAND}"
        )
    return CapturePlan.of(settings.run)


def encoding_of(args: argparse.Namespace, settings: Settings) -> Encoding:
    """How ``--conversations`` or ``--prompts`` are tokenized."""
    option = "--conversations" if args.conversations is not None else "--prompts"
    plan = plan_of(settings, option)
    return Encoding.of(plan, args.conversations or args.prompts)


def _of_conversations(args: argparse.Namespace, settings: Settings) -> Counts:
    encoding = encoding_of(args, settings)
    rows = read_conversations(args.conversations, limit=args.limit)
    chosen = spread(rows, args.tokenize)
    with Progress("tokenize", total=len(chosen), unit="conversation") as progress:
        found = count_conversations(
            chosen,
            encoding.encode,
            anchors_per_sample=settings.anchors,
            update=progress.advance,
        )
    return _scaled(found, len(rows), len(chosen))


def _of_prompts(args: argparse.Namespace, settings: Settings) -> Counts:
    if args.answer_tokens is None:
        raise UserError("--prompts has no answers yet: say how long they will be, --answer-tokens")
    encoding = encoding_of(args, settings)
    rows = read_prompts(args.prompts, limit=args.limit)
    chosen = spread(rows, args.tokenize)
    length = partial(_prompt_length, encoding)
    assert settings.run is not None  # encoding_of has refused that
    with Progress("tokenize", total=len(chosen), unit="prompt") as progress:
        found = count_prompts(
            chosen,
            length,
            answer_tokens=args.answer_tokens,
            max_length=settings.run.config.data.max_length,
            anchors_per_sample=settings.anchors,
            update=progress.advance,
        )
    return _scaled(found, len(rows), len(chosen))


def _prompt_length(encoding: Encoding, messages: list[Message], name: str) -> int:
    return len(prompt_tokens(encoding.tokenizer, messages, encoding.template_kwargs, name=name))


def _scaled(found: Counts, rows: int, looked_at: int) -> Counts:
    if rows == looked_at:
        return found
    scaled = found.scaled(rows, looked_at)
    source = f"{found.source}, of {rows:,}: scaled up"
    return Counts(**{**vars(scaled), "source": source})
