"""The day that a chat template prints, GPT-OSS's for one: that of the answers, not of the reading.

Otherwise a capture over midnight has prompts of two days, and none is the one that was answered.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

#: The function that templates ask for the day; transformers' gives today's.
_CLOCK = "strftime_now"


def prints_day(tokenizer: Any) -> bool:
    """Whether the tokenizer's own chat template prints a day."""
    return _CLOCK in str(tokenizer.chat_template)


def stopped_clock(day: str) -> dict[str, Any]:
    """Variables for a template that prints ``day`` ("2026-01-31"); {} for "", which is today."""
    # A template's variables go before its environment's functions.
    return {_CLOCK: datetime.fromisoformat(day).strftime} if day else {}
