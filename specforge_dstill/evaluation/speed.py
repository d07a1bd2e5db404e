"""How fast answers were decoded, and the speed-up ``S = t_AR / t_spec`` per output token.

Generation time is that of whole answers, the prompt's reading included, divided by the tokens
that were written; so S compares equal work even where sampled answers differ in length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import nan
from typing import Any

from specforge_dstill.evaluation.stopwatch import PHASES, Seconds
from specforge_dstill.table import NOTHING, byte_text, number_text, text_table

PLAIN = "plain"


@dataclass(frozen=True)
class Timing:
    """One answer.

    Attributes:
        name: of the prompt (or turn).
        tokens: that were written.
        same: whether they are those of plain decoding; None where they need not be (sampled).
    """

    name: str
    tokens: int
    seconds: Seconds
    same: bool | None = None


@dataclass(frozen=True)
class Speed:
    """One way of decoding.

    Attributes:
        timings: by data set, one an answer.
        peak_bytes: the most memory that any answer took, target and drafter included.
    """

    timings: Mapping[str, Sequence[Timing]]
    peak_bytes: int

    def per_token(self, data_set: str) -> float:
        """Seconds per output token; NaN for a set without answers."""
        timings = self.timings[data_set]
        tokens = sum(timing.tokens for timing in timings)
        return sum(timing.seconds.total for timing in timings) / tokens if tokens else nan

    def shares(self) -> dict[str, float]:
        """Of all time, the part that each phase took."""
        seconds = [timing.seconds for timings in self.timings.values() for timing in timings]
        total = sum(one.total for one in seconds)
        return {
            phase: sum(getattr(one, phase) for one in seconds) / total if total else nan
            for phase in PHASES
        }

    @property
    def same(self) -> tuple[int, int] | None:
        """How many answers are plain decoding's, of how many that must be; None: of none."""
        told = [t.same for timings in self.timings.values() for t in timings if t.same is not None]
        return (sum(told), len(told)) if told else None

    def to_json(self) -> dict[str, Any]:
        """JSON values; :func:`speed_from_json` gives it back."""
        return {
            "peak_bytes": self.peak_bytes,
            "timings": {
                data_set: {
                    timing.name: {
                        "tokens": timing.tokens,
                        "same": timing.same,
                        "seconds": asdict(timing.seconds),
                    }
                    for timing in timings
                }
                for data_set, timings in self.timings.items()
            },
        }


def speed_from_json(content: Mapping[str, Any]) -> Speed:
    """The speed behind :meth:`Speed.to_json`."""
    return Speed(
        timings={
            data_set: [
                Timing(name, found["tokens"], Seconds(**found["seconds"]), found["same"])
                for name, found in timings.items()
            ]
            for data_set, timings in content["timings"].items()
        },
        peak_bytes=content["peak_bytes"],
    )


def speedups(plain: Speed, drafted: Speed) -> dict[str, float]:
    """S by data set."""
    return {name: plain.per_token(name) / drafted.per_token(name) for name in plain.timings}


def mean_over_data_sets(values: Mapping[str, float]) -> float:
    """The unweighted mean over data sets."""
    return sum(values.values()) / len(values) if values else nan


def speed_table(plain: Speed, drafted: Sequence[tuple[str, int, Speed]]) -> str:
    """A row for plain decoding and each (drafter, passes, speed): S, shares, equality, memory."""
    header = ["Drafter", "Passes", *(f"S {name}" for name in plain.timings), "S", "ms/token"]
    header += [*(f"{phase} %" for phase in PHASES), "Same", "Peak"]
    rows = [_row(PLAIN, NOTHING, plain, plain)]
    rows += [_row(name, str(steps), speed, plain) for name, steps, speed in drafted]
    return text_table(header, rows)


def _row(name: str, steps: str, speed: Speed, plain: Speed) -> list[str]:
    by_data_set = speedups(plain, speed)
    per_token = mean_over_data_sets({name: speed.per_token(name) for name in speed.timings})
    same = speed.same
    return [
        name,
        steps,
        *map(number_text, by_data_set.values()),
        number_text(mean_over_data_sets(by_data_set)),
        number_text(1000 * per_token),
        *(number_text(100 * share, ".1f") for share in speed.shares().values()),
        NOTHING if same is None else f"{same[0]}/{same[1]}",
        byte_text(speed.peak_bytes),
    ]
