"""What one engine gave for a list of prompts, as it passes between the engines' environments."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Answers:
    """Greedy answers of one engine with one drafter.

    Attributes:
        tokens: of each answer, with the stop token.
        rounds, accepted: of all answers together, as the engine counts them.
    """

    engine: str
    tokens: tuple[tuple[int, ...], ...]
    rounds: int
    accepted: int

    @property
    def tau(self) -> float:
        """Tokens a round, the target's own included."""
        return 1 + self.accepted / self.rounds

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Answers:
        found = json.loads(text)
        return cls(**{**found, "tokens": as_tokens(found["tokens"])})


def as_tokens(answers: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Answers as tuples."""
    return tuple(map(tuple, answers))
