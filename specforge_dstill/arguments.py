"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import argparse
import json
from math import inf
from typing import Any


def add_run_file(parser: argparse.ArgumentParser) -> None:
    """The run file and its overrides."""
    parser.add_argument(
        "overrides", nargs="*", metavar="section.field=value", help="options of the run file"
    )
    parser.add_argument("--config", metavar="FILE", help="the run file (default: dstill.yaml)")


def add_placement(
    options: argparse.ArgumentParser | argparse._ArgumentGroup, *, default: str
) -> None:
    """Where and how a target computes in transformers; ``default`` tells which device else."""
    options.add_argument("--device", help=f"default: {default}, else cpu")
    options.add_argument(
        "--attn-implementation", help="the target's, as in transformers, such as flash_attention_2"
    )


def positive(text: str) -> int:
    """An option's whole number of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def natural(text: str) -> int:
    """An option's whole number of 0 or more."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return value


def positive_number(text: str) -> float:
    """An option's number above 0."""
    value = float(text)
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def json_object(text: str) -> dict[str, Any]:
    """An option's JSON object."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not valid JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object ({…})")
    return value


def _refuse_constant(name: str) -> None:
    """Python reads NaN and Infinity, which JSON has not and no settings file could keep."""
    raise argparse.ArgumentTypeError(f"not valid JSON: {name}")
