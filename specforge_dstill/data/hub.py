"""Data sets on the Hub: which names are theirs, and their rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specforge_dstill.errors import UserError, reason

HUB_PREFIX = "hub:"
_HUB_NAME = re.compile(r"^[\w.-]+/[\w.-]+$")


def hub_name(source: str | Path) -> tuple[str, str] | None:
    """(data set, split) when ``source`` names one on the Hub, None for a local path."""
    text = str(source)
    if text.startswith(HUB_PREFIX):
        name, _, split = text[len(HUB_PREFIX) :].partition(":")
        return name, split or "train"
    name, _, split = text.partition(":")
    is_file = Path(text).exists() or text.endswith((".jsonl", ".json"))
    if is_file or isinstance(source, Path) or not _HUB_NAME.match(name):
        return None
    return name, split or "train"


def load_hub(name: str, split: str, *, config: str | None = None) -> Iterator[Mapping[str, Any]]:
    """The rows of a data set on the Hub. Raises: ``UserError`` when it, or a row, cannot be had."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UserError(f"{name}: reading it needs the package datasets (pip)") from error
    count = 0
    try:
        # Streamed, so that a --limit does not wait for the whole download.
        for row in load_dataset(name, config, split=split, streaming=True):
            yield row
            count += 1
    except Exception as error:  # datasets raises many kinds; each means "not to be had"
        if count:
            told = f"{name} ({split}): the Hub broke off after row {count}"
        else:
            told = f"{name}: no local file of this name, and the Hub gave no split {split!r}"
        raise UserError(f"{told}: {reason(error)}") from error
