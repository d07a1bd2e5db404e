"""The prompts of a data set: which answers belong together, and resamples of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specforge_dstill.evaluation.intervals import (
    DRAWS,
    Array,
    Quantity,
    ratio_of_sums,
    resampling,
)


@dataclass(frozen=True)
class PromptResamples:
    """Resamples of a data set's prompts, the same for all that is measured on them.

    Attributes:
        numbers: the prompt of each answer, by the answer's name.
        weights: [1 + R, U].
    """

    numbers: Mapping[str, int]
    weights: Array

    @classmethod
    def of(cls, data_set: str, answers: Iterable[str]) -> PromptResamples:
        """From the names of answers. A data set is drawn alike whatever else is on the page."""
        units = prompt_of(list(answers))
        numbers = {unit: number for number, unit in enumerate(dict.fromkeys(units.values()))}
        generator = np.random.default_rng(zlib.crc32(data_set.encode()))
        weights = resampling(len(numbers), draws=DRAWS, generator=generator)
        return cls({answer: numbers[unit] for answer, unit in units.items()}, weights)

    def ratio(
        self, runs: Sequence[int], rows: Sequence[Iterable[tuple[str, float, float]]]
    ) -> Quantity:
        """A ratio of sums, from each run's (answer, part above, part below)."""
        top = np.zeros((len(runs), self.weights.shape[1]))
        bottom = np.zeros_like(top)
        for run, row in enumerate(rows):
            for name, above, below in row:
                top[run, self.numbers[name]] += above
                bottom[run, self.numbers[name]] += below
        return Quantity(tuple(runs), ratio_of_sums(self.weights, top, bottom))


def prompt_of(names: Sequence[str]) -> dict[str, str]:
    """The prompt that each answer belongs to: ``id/2`` is the second turn of ``id``.

    Turns of a prompt resemble each other, so prompts are resampled, not turns.
    """
    known = set(names)

    def prompt(name: str) -> str:
        first, slash, turn = name.rpartition("/")
        return first if slash and turn.isdigit() and first in known else name

    return {name: prompt(name) for name in names}
