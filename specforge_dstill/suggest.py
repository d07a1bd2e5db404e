"""What a mistyped word was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_ALIKE = 0.65


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like `word`, or None where nothing comes close."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=_ALIKE)
    return found[0] if found else None


def nearest_key(key: str, keys: Iterable[str]) -> str | None:
    """The dotted key most like `key`: its last part counts most, then the whole path."""

    def likeness(a: str, b: str) -> float:
        return difflib.SequenceMatcher(None, a, b).ratio()

    last = key.rpartition(".")[2]
    best, best_score = None, 0.0
    for candidate in keys:
        name = likeness(last, candidate.rpartition(".")[2])
        score = name + 0.5 * likeness(key, candidate)
        if name >= _ALIKE and score > best_score:
            best, best_score = candidate, score
    return best
