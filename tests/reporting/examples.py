"""Small evaluations, of which everything can be reckoned by hand."""

from __future__ import annotations

from typing import Any

from specforge_dstill.evaluation.replay import Walk
from specforge_dstill.evaluation.report import Report, Score
from specforge_dstill.evaluation.speed import Speed, Timing
from specforge_dstill.evaluation.stopwatch import Seconds
from specforge_dstill.reporting.tables import Cell, Number

BLOCK_SIZE = 4
DETAILS = {
    "measured": "greedy tau by replay",
    "target": "tiny",
    "template_kwargs": {"enable_thinking": False},
    "max_new_tokens": 80,
    "prompts": {"easy": {"source": "easy.jsonl", "limit": None}},
    "versions": {"torch": "2.13.0"},
}


def score(
    drafter: str, steps: int, easy: list[list[int]], hard: list[list[int]], speed: Any = None
) -> Score:
    """Rounds of each prompt of two data sets."""
    walks = {
        name: [Walk(f"{name}-{i}", tuple(accepted)) for i, accepted in enumerate(found)]
        for name, found in (("easy", easy), ("hard", hard))
    }
    return Score(drafter, steps, walks, speed)


def example(*, more: int = 0, **details: Any) -> Report:
    """DFlash, teacher and student; ``more`` is added to the student's first round."""
    return Report(
        BLOCK_SIZE,
        (
            score("dflash", 1, [[1, 1], [2], [0, 0, 1]], [[0, 1], [1]]),
            score("teacher", 1, [[1, 2], [2], [0, 1, 1]], [[1, 1], [1]]),
            score("teacher", 3, [[3, 2], [3], [1, 2, 2]], [[2, 2], [2]]),
            score("student", 1, [[2 + more, 2], [2], [1, 1, 1]], [[1, 2], [2]]),
        ),
        {**DETAILS, **details},
    )


def speed(seconds: float, tokens: int) -> Speed:
    """As long for every prompt of :func:`example`; the first of the easy ones twice as long."""
    timings = {
        "easy": [
            Timing(f"easy-{i}", tokens, Seconds(verify=seconds * (2 if i == 0 else 1)))
            for i in range(3)
        ],
        "hard": [Timing(f"hard-{i}", tokens, Seconds(verify=seconds)) for i in range(2)],
    }
    return Speed(timings, 1_000_000)


def decoded(temperature: float = 0.0, **details: Any) -> Report:
    """An evaluation by decoding: the student needs a third of the target's time."""
    drafted = score("student", 1, [[2], [2], [1]], [[1], [2]], speed(1, 10))
    told = {"measured": "real decoding", "temperature": temperature, "top_p": 0.9}
    return Report(BLOCK_SIZE, (drafted,), {**DETAILS, **told, **details}, plain=speed(3, 10))


def texts(row: tuple[Cell, ...]) -> list[str]:
    """A row of a table without its intervals."""
    return [cell.text if isinstance(cell, Number) else cell for cell in row]
