"""From the turns that were decoded to a report: acceptance, times, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specforge_dstill.console import say
from specforge_dstill.evaluation.interleaved import Measured
from specforge_dstill.evaluation.replay import Walk
from specforge_dstill.evaluation.report import Report, Score
from specforge_dstill.evaluation.speed import PLAIN, Speed, Timing
from specforge_dstill.verbs.decode_ways import way_name
from specforge_dstill.verbs.evaluation_inputs import MeasuredDraft
from specforge_dstill.verbs.evaluation_plan import EvaluationPlan

#: Of one turn: its name, and what each way of decoding gave.
Turn = tuple[str, dict[str, Measured]]
Turns = Mapping[str, Sequence[Turn]]


def decoding_report(
    plan: EvaluationPlan,
    turns: Turns,
    facts: Mapping[str, MeasuredDraft],
    details: dict[str, Any],
    *,
    greedy: bool,
) -> Report:
    """A score for each drafter and number of passes, and the target's own speed.

    Args:
        turns: by data set.
        facts: of each drafter, by name.
        greedy: whether every answer must be the target's own; those that are not are told.
    """
    scores = []
    for chosen, passes in plan.drafters:
        for steps in passes:
            way = way_name(chosen.name, steps)
            walks = {
                data_set: [Walk(name, turn[way].decoded.accepted) for name, turn in found]
                for data_set, found in turns.items()
            }
            unused = bytes_beside(chosen.name, facts)
            speed = _speed(turns, way, must_agree=greedy, unused=unused)
            scores.append(Score(chosen.name, steps, walks, speed))
            _warn_of_other_answers(way, speed)
    plain = _speed(turns, PLAIN, must_agree=False, unused=bytes_beside(None, facts))
    return Report(plan.block_size, tuple(scores), details, plain=plain)


def bytes_beside(drafter: str | None, facts: Mapping[str, MeasuredDraft]) -> int:
    """What all drafters but one weigh (None: all of them).

    They stay loaded while ways of decoding take turns, and are no part of the one's memory.
    """
    return sum(one.bytes for name, one in facts.items() if name != drafter)


def _speed(turns: Turns, way: str, *, must_agree: bool, unused: int) -> Speed:
    def timing(name: str, turn: dict[str, Measured]) -> Timing:
        found, plain = turn[way].decoded, turn[PLAIN].decoded
        same = found.tokens == plain.tokens if must_agree else None
        return Timing(name, len(found.tokens), found.seconds, same)

    peak = max(turn[way].peak_bytes for found in turns.values() for _, turn in found)
    timings = {data_set: [timing(*turn) for turn in found] for data_set, found in turns.items()}
    return Speed(timings, peak - unused)


def _warn_of_other_answers(way: str, speed: Speed) -> None:
    """Greedy decoding is lossless in exact arithmetic; rounding may still decide a close call."""
    if speed.same is not None and speed.same[0] < speed.same[1]:
        other = speed.same[1] - speed.same[0]
        say(
            f"{way}: {other} of {speed.same[1]} greedy answers differ from the target's own; a "
            "block and single tokens are read with different rounding (--dtype float32 has least)"
        )
