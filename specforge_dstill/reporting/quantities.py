"""What is shown of a setting: acceptance, speed-up and recovery, with what intervals need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from specforge_dstill.evaluation.intervals import (
    Array,
    Estimate,
    Quantity,
    average,
    combine,
    of_means,
)
from specforge_dstill.evaluation.replay import Walk
from specforge_dstill.evaluation.report import teacher_of
from specforge_dstill.evaluation.speed import Speed
from specforge_dstill.reporting.prompts import PromptResamples
from specforge_dstill.reporting.settings import Method, Setting


@dataclass(frozen=True)
class Quantities:
    """The quantities of one setting, all over the same resamples of its prompts."""

    setting: Setting

    @property
    def methods(self) -> tuple[Method, ...]:
        """The setting's."""
        return self.setting.methods

    @property
    def suffix(self) -> str:
        """What the titles of its tables end with."""
        return self.setting.suffix

    def shared(self, methods: Sequence[Method]) -> tuple[str, ...]:
        """The data sets, which all of a setting's methods have; none for one that it has not."""
        return self.setting.data_sets if {*methods} <= {*self.methods} else ()

    @cached_property
    def _prompts(self) -> dict[str, PromptResamples]:
        """By data set."""
        return {
            name: PromptResamples.of(name, [walk.name for walk in walks])
            for name, walks in self.setting.first.scores[0].walks.items()
        }

    @cached_property
    def _taus(self) -> dict[tuple[Method, str], Quantity]:
        """Formed once: tables and figures ask again and again."""
        return {
            (method, name): self._tau(method, name)
            for method in self.setting.methods
            for name in self.setting.data_sets
        }

    def tau(self, method: Method, data_set: str) -> Quantity:
        """Mean acceptance length, a ratio of sums over rounds."""
        return self._taus[method, data_set]

    def _tau(self, method: Method, data_set: str) -> Quantity:
        runs = self.setting.runs(method)
        rows = [
            [
                (w.name, sum(w.accepted) + len(w.accepted), len(w.accepted))
                for w in s.walks[data_set]
            ]
            for s in runs.values()
        ]
        return self._prompts[data_set].ratio(tuple(runs), rows)

    def accepts(self, method: Method, data_set: str) -> list[Quantity]:
        """Share of rounds that accept i drafted tokens or more, i = 1..B-1."""
        size = self.setting.first.block_size
        runs = self.setting.runs(method)
        counted = [
            [
                (walk.name, _at_least(walk, size), len(walk.accepted))
                for walk in score.walks[data_set]
            ]
            for score in runs.values()
        ]
        prompts = self._prompts[data_set]
        return [
            prompts.ratio(
                tuple(runs),
                [[(name, float(of[i]), rounds) for name, of, rounds in row] for row in counted],
            )
            for i in range(1, size)
        ]

    def speedup(self, method: Method, data_set: str) -> Quantity:
        """S, the target alone against the method on the same prompts in the same run."""
        runs = self.setting.runs(method)
        plain = {run: self.setting.reports[run].plain for run in runs}
        drafted = {run: score.speed for run, score in runs.items()}
        return combine(
            np.divide, self._per_token(plain, data_set), self._per_token(drafted, data_set)
        )

    def average_tau(self, method: Method) -> Quantity:
        """The unweighted mean over data sets."""
        return combine(average, *(self.tau(method, name) for name in self.setting.data_sets))

    def average_speedup(self, method: Method) -> Quantity:
        """The unweighted mean over data sets."""
        return combine(average, *(self.speedup(method, name) for name in self.setting.data_sets))

    def recovery(self, method: Method) -> Estimate | None:
        """Eq. 13 in percent, for the methods that the evaluation's own table has it for.

        Formed from tau averaged over benchmarks and runs, so that one run whose teacher gains
        little does not outweigh the others; None where teachers do not gain on average.
        """
        name = teacher_of(method.drafter, {m.drafter for m in self.setting.methods})
        passes = [m.steps for m in self.setting.methods if m.drafter == name]
        if name is None or method.steps != 1 or 1 not in passes or max(passes) == 1:
            return None
        once, more = Method(name, 1), Method(name, max(passes))
        found = of_means(_recovery, *map(self.average_tau, (method, once, more)))
        return found if isfinite(found.value) else None

    def _per_token(self, speeds: Mapping[int, Speed | None], data_set: str) -> Quantity:
        rows = [
            [(t.name, t.seconds.total, t.tokens) for t in speed.timings[data_set]]
            for speed in speeds.values()
            if speed is not None
        ]
        return self._prompts[data_set].ratio(tuple(speeds), rows)


def _at_least(walk: Walk, block_size: int) -> NDArray[np.int64]:
    """How many rounds accept i drafted tokens or more, i = 0..B-1."""
    counts = np.bincount(np.array(walk.accepted, dtype=np.int64), minlength=block_size)
    return counts[::-1].cumsum()[::-1]


def _recovery(student: Array, once: Array, more: Array) -> Array:
    gain = more - once
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(gain > 0, 100 * (student - once) / gain, np.nan)
