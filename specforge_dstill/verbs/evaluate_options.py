"""The values of ``evaluate``'s options, and which of them each way of measuring has."""

from __future__ import annotations

import argparse
import re
from math import inf
from typing import Any

from specforge_dstill.data.benchmarks import BENCHMARKS
from specforge_dstill.errors import UserError
from specforge_dstill.verbs.evaluation_inputs import DataSet, DrafterChoice, check_distinct

REPLAY, DECODE, SERVER, CAPTURED = "--replay", "--decode", "--server", "--captured"
#: Options that not every way has, or not with the same default.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "answers": {REPLAY: None},
    "captured": {REPLAY: None},
    "overwrite": {REPLAY: False, DECODE: False},
    "batch_size": {REPLAY: 16},
    "steps": {REPLAY: None, DECODE: None},
    "dtype": {REPLAY: "float32", DECODE: "float32"},
    "device": {REPLAY: None, DECODE: None},
    "attn_implementation": {REPLAY: None, DECODE: None},
    "max_new_tokens": {REPLAY: 2048, DECODE: 2048, SERVER: 4096},
    "temperature": {DECODE: (0.0,), SERVER: (0.0, 1.0)},
    "top_p": {DECODE: 1.0, SERVER: 1.0},
    "top_k": {DECODE: 0, SERVER: 0},
    "rule": {DECODE: "compare"},
    "min_confidence": {DECODE: None},
    "seed": {DECODE: 0},
    "concurrency": {SERVER: (1, 8, 16, 32)},
    "model": {SERVER: None},
    "engine": {SERVER: None},
    "timeout": {SERVER: 600.0},
}
#: What decides answers that are still to be made.
_OF_NEW_ANSWERS = ("prompts", "answers", "max_new_tokens", "template_kwargs", "attn_implementation")
_NAME = re.compile(r"[\w.-]+")
_NUMBERS = re.compile(r"\d+(?:,\d+)*")


def data_set(text: str) -> DataSet:
    """An option's NAME=SOURCE, or a benchmark's name."""
    if text in BENCHMARKS:
        return DataSet(text, None)
    known = ", ".join(BENCHMARKS)
    return DataSet(*_named(text, f"a data set is NAME=FILE, NAME=hub:DATASET or one of {known}"))


def captured_set(text: str) -> DataSet:
    """An option's NAME=FOLDER."""
    return DataSet(*_named(text, "a capture is NAME=FOLDER"))


def drafter_choice(text: str) -> DrafterChoice:
    """An option's NAME=CHECKPOINT[:STEPS], or the bare NAME of a server's drafter."""
    if _NAME.fullmatch(text):
        return DrafterChoice(text, "", None)
    name, source = _named(text, "a drafter is NAME=CHECKPOINT or NAME=CHECKPOINT:STEPS")
    checkpoint, _, steps = source.rpartition(":")
    if checkpoint and _NUMBERS.fullmatch(steps):
        return DrafterChoice(name, checkpoint, steps_list(steps))
    return DrafterChoice(name, source, None)


def steps_list(text: str) -> tuple[int, ...]:
    """An option's numbers of passes, such as 1,8."""
    if not _NUMBERS.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of passes such as 1,8")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def concurrencies(text: str) -> tuple[int, ...]:
    """An option's requests at a time, such as 1,8."""
    if not _NUMBERS.fullmatch(text) or 0 in map(int, text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of requests at a time such as 1,8")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def temperatures(text: str) -> tuple[float, ...]:
    """An option's temperatures such as 0,1, each once."""
    values = tuple(dict.fromkeys(map(float, text.split(","))))
    if not all(-inf < value < inf for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of temperatures such as 0,1")
    return values


def fill_in(args: argparse.Namespace) -> str:
    """Which way of measuring was asked for; its options get their defaults.

    Raises:
        UserError: none or several ways were named, or an option that the way has not.
    """
    ways = [REPLAY] * args.replay + [DECODE] * args.decode
    ways += [SERVER] if args.server or args.plain_server else []
    if len(ways) != 1:
        raise UserError(
            "say how to measure: --replay walks the target's greedy answers, --decode decodes "
            "with each drafter, --server (or --plain-server) asks a server"
        )
    (way,) = ways
    if args.captured:
        _check_captured(args)
    elif not args.prompts:
        raise UserError("say what to answer: --prompts NAME[=SOURCE], as often as there are sets")
    args.prompts = args.prompts or []
    for name, defaults in _DEFAULTS.items():
        given = getattr(args, name) is not None
        if given and way not in defaults:
            raise UserError(f"--{name.replace('_', '-')} belongs to {' and '.join(defaults)}")
        if not given:
            setattr(args, name, defaults.get(way))
    if way == DECODE:
        if len(args.temperature) > 1:
            raise UserError("--decode takes one --temperature; give another --output for another")
        (args.temperature,) = args.temperature
    return way


def _check_captured(args: argparse.Namespace) -> None:
    """UserError for options of answers that are made, where they are there already."""
    for name in _OF_NEW_ANSWERS:
        if getattr(args, name) is not None:
            raise UserError(
                f"--{name.replace('_', '-')} is for answers that evaluate makes; those of "
                f"{CAPTURED} are there: leave it out"
            )
    check_distinct(CAPTURED, [chosen.name for chosen in args.captured])


def _named(text: str, shape: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value or not _NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{text!r}: {shape}")
    return name, value
