"""The shapes of the paper's Tables 5 to 8: benchmarks by row, variants of a method by column.

A variant is known by its drafter's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from specforge_dstill.evaluation.intervals import average, combine
from specforge_dstill.evaluation.report import STUDENT
from specforge_dstill.reporting.main_tables import AVERAGE
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.settings import Method
from specforge_dstill.reporting.tables import Cell, Number, Table


@dataclass(frozen=True)
class Comparison:
    """What a table sets side by side.

    Attributes:
        variants: each with its heading.
        least: how many of them must be there for a table.
    """

    title: str
    variants: tuple[tuple[Method, str], ...]
    least: int = 2


def _once(drafter: str, heading: str) -> tuple[Method, str]:
    return Method(drafter, 1), heading


PAPERS = (
    Comparison(
        "DFlash trained on against distillation (Table 5)",
        (
            _once("dflash", "dflash"),
            _once("dflash-more", "dflash, trained on"),
            _once(STUDENT, "student"),
        ),
        least=3,
    ),
    Comparison(
        "States: the root alone against the cosine schedule (Table 6)",
        (_once("student-root", "p_root = 1"), _once(STUDENT, "cosine")),
    ),
    Comparison(
        "Supervision: endpoint CE, both, KD (Table 7)",
        (
            _once("student-ce", "α = 0"),
            _once(STUDENT, "α = 0.2"),
            _once("student-kd", "α = 1"),
        ),
    ),
    Comparison(
        "Trajectory-quality weights (Table 8)",
        (_once(STUDENT, "unweighted"), _once("student-weighted", "weighted")),
    ),
)


def comparison_table(quantities: Quantities, comparison: Comparison) -> Iterator[Table]:
    """Tau by benchmark of those variants that are there, if enough are; of two the difference."""
    setting = quantities.setting
    found = [(m, heading) for m, heading in comparison.variants if m in setting.methods]
    if len(found) < max(comparison.least, 2):
        return
    methods = [method for method, _ in found]
    by_set = {name: [quantities.tau(m, name) for m in methods] for name in setting.data_sets}
    if len(by_set) > 1:
        columns = zip(*by_set.values(), strict=True)
        by_set[AVERAGE] = [combine(average, *column) for column in columns]
    rows = []
    for name, taus in by_set.items():
        cells: list[Cell] = [Number(tau.estimate()) for tau in taus]
        if len(taus) == 2:
            cells.append(Number(combine(np.subtract, taus[1], taus[0]).estimate(), signed=True))
        rows.append((name, *cells))
    header = ("τ", *(heading for _, heading in found), *(["Δ"] if len(found) == 2 else []))
    yield Table(f"{comparison.title}{setting.suffix}", header, tuple(rows))
