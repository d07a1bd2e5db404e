"""What an evaluation found: acceptance lengths as a table and as a file that can be redrawn.

The table has the shape of the paper's Table 4. Averages over data sets are unweighted, and so
is recovery (Eq. 13), which is formed from them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

from specforge_dstill.evaluation.replay import Walk, acceptance_by_position, mean_acceptance
from specforge_dstill.evaluation.result_files import json_text, parsed
from specforge_dstill.evaluation.speed import (
    Speed,
    mean_over_data_sets,
    speed_from_json,
    speed_table,
    speedups,
)
from specforge_dstill.maths.acceptance import recovery
from specforge_dstill.table import number_text, text_table

FORMAT = 1
TEACHER, STUDENT = "teacher", "student"


def teacher_of(drafter: str, drafters: Collection[str]) -> str | None:
    """The drafter whose gain a student's recovery is a part of; None for what is no student.

    ``student-x-y`` is held against ``teacher-x-y`` where ``drafters`` have one, else against
    ``teacher-x``, else ``teacher``.
    """
    if drafter != STUDENT and not drafter.startswith(f"{STUDENT}-"):
        return None
    words = drafter.removeprefix(STUDENT).split("-")
    names = (TEACHER + "-".join(words[:count]) for count in range(len(words), 0, -1))
    return next((name for name in names if name in drafters), TEACHER)


@dataclass(frozen=True)
class Score:
    """One drafter at one number of passes.

    Attributes:
        walks: by data set, one walk a prompt (or turn).
        speed: over the same prompts, where it was measured.
    """

    drafter: str
    steps: int
    walks: Mapping[str, Sequence[Walk]]
    speed: Speed | None = None

    @property
    def tau(self) -> dict[str, float]:
        """Mean acceptance length by data set; NaN for a set without a round."""
        return {name: mean_acceptance(walks) for name, walks in self.walks.items()}

    @property
    def average(self) -> float:
        """The unweighted mean of tau over data sets; NaN if it is NaN for one of them."""
        return mean_over_data_sets(self.tau)

    def by_position(self, *, block_size: int) -> list[float]:
        """Share of rounds that accept i drafted tokens or more, i = 1..B-1.

        The mean over the data sets that have rounds; NaN without one.
        """
        drafted = [walks for walks in self.walks.values() if any(walk.accepted for walk in walks)]
        shares = [acceptance_by_position(walks, block_size=block_size) for walks in drafted]
        columns = zip(*shares, strict=True)
        return [sum(column) / len(shares) for column in columns] or [nan] * (block_size - 1)


@dataclass(frozen=True)
class Report:
    """All scores of an evaluation.

    Attributes:
        scores: each over the same data sets.
        details: how it was made (settings, versions, checkpoints), JSON values.
        plain: the target's speed without a drafter, where speed was measured.
    """

    block_size: int
    scores: tuple[Score, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
    plain: Speed | None = None

    @property
    def data_sets(self) -> tuple[str, ...]:
        return tuple(self.scores[0].walks) if self.scores else ()

    def recovery(self, score: Score) -> float | None:
        """Eq. 13 for the one pass of a student, against its teacher (:func:`teacher_of`).

        None for other drafters, without that teacher at one pass and at more (the most counts),
        and for a teacher that gains nothing from its passes.
        """
        name = teacher_of(score.drafter, {s.drafter for s in self.scores})
        teacher = {s.steps: s.average for s in self.scores if s.drafter == name}
        if score.steps != 1 or 1 not in teacher:
            return None
        return recovery(
            student_1=score.average, teacher_1=teacher[1], teacher_k=teacher[max(teacher)]
        )

    def header(self) -> list[str]:
        """The table's column names."""
        return ["Drafter", "Passes", *self.data_sets, "Average", "Recovery %"]

    def rows(self) -> list[list[str]]:
        """The table's cells, a row a score."""
        return [
            [
                score.drafter,
                str(score.steps),
                *map(number_text, score.tau.values()),
                number_text(score.average),
                _percent_text(self.recovery(score)),
            ]
            for score in self.scores
        ]

    def text(self) -> str:
        """The table in plain text, names to the left and numbers to the right."""
        return text_table(self.header(), self.rows())

    def speedups(self, score: Score) -> dict[str, float] | None:
        """S by data set; None where speed was not measured."""
        return speedups(self.plain, score.speed) if self.plain and score.speed else None

    def speed_text(self) -> str | None:
        """The table of speeds in plain text; None where speed was not measured."""
        if self.plain is None:
            return None
        drafted = [(s.drafter, s.steps, s.speed) for s in self.scores if s.speed is not None]
        return speed_table(self.plain, drafted)

    def to_json(self) -> str:
        """The whole report; :func:`report_from_json` gives it back."""
        content = {
            "format": FORMAT,
            "details": dict(self.details),
            "block_size": self.block_size,
            "scores": [self._score_json(score) for score in self.scores],
        }
        if self.plain is not None:
            content["plain"] = self.plain.to_json()
        return json_text(content) + "\n"

    def _score_json(self, score: Score) -> dict[str, Any]:
        content = {
            "drafter": score.drafter,
            "steps": score.steps,
            "average": _finite(score.average),
            "recovery": _finite(self.recovery(score)),
            "by_position": _finite_list(score.by_position(block_size=self.block_size)),
            "data_sets": {
                name: {
                    "tau": _finite(score.tau[name]),
                    "answers": len(walks),
                    "rounds": sum(len(walk.accepted) for walk in walks),
                    "by_position": _finite_list(
                        acceptance_by_position(walks, block_size=self.block_size)
                    ),
                    "accepted": {walk.name: list(walk.accepted) for walk in walks},
                }
                for name, walks in score.walks.items()
            },
        }
        gains = self.speedups(score)
        if gains is not None and score.speed is not None:
            content["speedup"] = {name: _finite(value) for name, value in gains.items()}
            content["speed"] = score.speed.to_json()
        return content


def report_from_json(text: str) -> Report:
    """The report behind :meth:`Report.to_json`'s text.

    Raises:
        ValueError: the text is not such a report, or of another format.
    """
    return parsed(text, _report, kind="an evaluation's results", version=FORMAT)


def _report(content: Mapping[str, Any]) -> Report:
    scores = tuple(
        Score(
            drafter=score["drafter"],
            steps=score["steps"],
            walks={
                name: [Walk(prompt, tuple(a)) for prompt, a in found["accepted"].items()]
                for name, found in score["data_sets"].items()
            },
            speed=_speed(score, "speed"),
        )
        for score in content["scores"]
    )
    return Report(content["block_size"], scores, content["details"], _speed(content, "plain"))


def _speed(content: Mapping[str, Any], name: str) -> Speed | None:
    return speed_from_json(content[name]) if name in content else None


def _finite(value: float | None) -> float | None:
    """A number that JSON can hold: None for NaN."""
    return None if value is None or isnan(value) else value


def _finite_list(values: Sequence[float]) -> list[float | None]:
    return [_finite(value) for value in values]


def _percent_text(share: float | None) -> str:
    return number_text(None if share is None else 100 * share)
