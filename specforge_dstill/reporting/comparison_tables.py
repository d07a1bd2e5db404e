"""The shapes of the paper's Tables 5 to 8: benchmarks by row, variants of a method by column.

A variant is known by its drafter's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from specforge_dstill.evaluation.intervals import average, combine
from specforge_dstill.evaluation.report import STUDENT
from specforge_dstill.reporting.acceptance import Acceptance
from specforge_dstill.reporting.main_tables import AVERAGE
from specforge_dstill.reporting.settings import Method
from specforge_dstill.reporting.tables import Cell, Number, Table


@dataclass(frozen=True)
class SideBySide:
    """What a table sets side by side, each under its own name.

    Attributes:
        least: how many of them must be there for a table.
        note: what the paper's drafters of these names are; nobody checked that these are, too.
    """

    title: str
    methods: tuple[Method, ...]
    least: int = 2
    note: str = ""


def _once(*drafters: str) -> tuple[Method, ...]:
    return tuple(Method(drafter, 1) for drafter in drafters)


PAPERS = (
    SideBySide(
        "DFlash trained longer against distillation (Table 5)",
        _once("dflash", "dflash-more", STUDENT),
        least=3,
        note="The paper: dflash-more is DFlash at 10 epochs instead of 5. In our grids: dflash, "
        "trained for as many more steps as the student gets.",
    ),
    SideBySide(
        "States: the root alone against the cosine schedule (Table 6)",
        _once("student-root", STUDENT),
        note="The paper: p_root = 1 for student-root, the cosine schedule for student.",
    ),
    SideBySide(
        "Supervision: endpoint CE, both, KD (Table 7)",
        _once("student-ce", STUDENT, "student-kd"),
        note="The paper: α = 0 for student-ce, α = 0.2 for student, α = 1 for student-kd.",
    ),
    SideBySide(
        "Trajectory-quality weights (Table 8)",
        _once(STUDENT, "student-weighted"),
        note="The paper: student unweighted, student-weighted with trajectory weights.",
    ),
)


def comparison_table(found: Acceptance, comparison: SideBySide) -> Iterator[Table]:
    """Tau by benchmark of those variants that are there, if enough are; of two the difference.

    Benchmarks that one of them lacks are left out.
    """
    methods = [method for method in comparison.methods if method in found.methods]
    by_set = {name: [found.tau(m, name) for m in methods] for name in found.shared(methods)}
    if len(methods) < max(comparison.least, 2) or not by_set:
        return
    if len(by_set) > 1:
        columns = zip(*by_set.values(), strict=True)
        by_set[AVERAGE] = [combine(average, *column) for column in columns]
    rows = []
    for name, taus in by_set.items():
        cells: list[Cell] = [Number(tau.estimate()) for tau in taus]
        if len(taus) == 2:
            cells.append(Number(combine(np.subtract, taus[1], taus[0]).estimate(), signed=True))
        rows.append((name, *cells))
    header = ("τ", *map(str, methods), *(["Δ"] if len(methods) == 2 else []))
    notes = (comparison.note,) if comparison.note else ()
    yield Table(f"{comparison.title}{found.suffix}", header, tuple(rows), notes=notes)
