"""What was measured against servers as a plain table."""

from __future__ import annotations

from collections.abc import Mapping

from specforge_dstill.evaluation.serving import Served, ServingReport, paired
from specforge_dstill.evaluation.speed import PLAIN
from specforge_dstill.table import number_text, text_table

_HEADER = ("Data set", "T", "C", "Drafter", "τ", "ms/token", "tokens/s", "S")
_Point = tuple[str, float, int]


def serving_text(report: ServingReport) -> str:
    """A row a cell: τ, time per output token, throughput, and S where both are there."""
    plain = {one.point: one for one in report.served if one.drafter is None}
    order = {name: number for number, name in enumerate(_data_sets(report))}
    cells = sorted(
        report.served,
        key=lambda one: (order[one.data_set], one.temperature, one.concurrency, one.steps),
    )
    return text_table(_HEADER, [_row(one, plain) for one in cells])


def tau(served: Served) -> float | None:
    """1 + accepted / rounds; None without a round."""
    if served.drafted is None or served.drafted[0] == 0:
        return None
    rounds, accepted = served.drafted
    return 1 + accepted / rounds


def _data_sets(report: ServingReport) -> dict[str, None]:
    return dict.fromkeys(one.data_set for one in report.served)


def _row(one: Served, plain: Mapping[_Point, Served]) -> list[str]:
    return [
        one.data_set,
        f"{one.temperature:g}",
        str(one.concurrency),
        one.drafter or PLAIN,
        number_text(tau(one)),
        number_text(1000 * one.per_token),
        f"{one.throughput:,.1f}",
        number_text(_speedup(one, plain.get(one.point))),
    ]


def _speedup(one: Served, alone: Served | None) -> float | None:
    if alone is None:
        return None
    drafted, plain = paired(one, alone)
    return plain.per_token / drafted.per_token
