"""Variants by row: acceptance by benchmark, and the difference to one of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specforge_dstill.evaluation.intervals import average, combine
from specforge_dstill.reporting.acceptance import Acceptance
from specforge_dstill.reporting.main_tables import AVERAGE
from specforge_dstill.reporting.settings import Method
from specforge_dstill.reporting.tables import Cell, Number, Table
from specforge_dstill.table import NOTHING


def variant_table(found: Acceptance, reference: str) -> Iterator[Table]:
    """Tau of every drafter and number of passes against ``reference`` at one pass.

    Differences are paired by prompt and by run; a drafter without all of the reference's
    benchmarks has neither average nor difference. None where the reference was not measured.
    """
    against = Method(reference, 1)
    sets = found.shared([against]) if against in found.methods else ()
    if not sets:
        return
    base = combine(average, *(found.tau(against, name) for name in sets))
    several = len(sets) > 1
    rows: list[tuple[Cell, ...]] = []
    for method in found.methods:
        taus = {name: found.tau(method, name) for name in found.shared([method, against])}
        cells: list[Cell] = [
            Number(taus[name].estimate()) if name in taus else NOTHING for name in sets
        ]
        last: list[Cell] = [NOTHING] * (1 + several)
        if len(taus) == len(sets):
            mean = combine(average, *taus.values())
            difference = Number(combine(np.subtract, mean, base).estimate(), signed=True)
            last = [*([Number(mean.estimate())] if several else [])]
            last.append(NOTHING if method == against else difference)
        rows.append((str(method), *cells, *last))
    yield Table(
        f"Variants against {reference}{found.suffix}",
        ("τ", *sets, *([AVERAGE] if several else []), "Δ"),
        tuple(rows),
        notes=(f"Δ: the average's difference to {reference}'s, paired by prompt and by run.",),
    )
