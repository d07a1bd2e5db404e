"""Variants by row: acceptance by benchmark, and the difference to one of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specforge_dstill.evaluation.intervals import combine
from specforge_dstill.reporting.main_tables import columns_of
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.settings import Method
from specforge_dstill.reporting.tables import Cell, Number, Table
from specforge_dstill.table import NOTHING


def variant_table(quantities: Quantities, reference: str) -> Iterator[Table]:
    """Tau of every drafter and number of passes against ``reference`` at one pass.

    Differences are paired by prompt and by run. None where the reference was not measured.
    """
    setting, against = quantities.setting, Method(reference, 1)
    if against not in setting.methods:
        return
    base = quantities.average_tau(against)
    rows: list[tuple[Cell, ...]] = []
    for method in setting.methods:
        found = [quantities.tau(method, name) for name in setting.data_sets]
        mean = quantities.average_tau(method)
        if len(found) > 1:
            found.append(mean)
        difference = Number(combine(np.subtract, mean, base).estimate(), signed=True)
        cells = [Number(tau.estimate()) for tau in found]
        rows.append((str(method), *cells, NOTHING if method == against else difference))
    yield Table(
        f"Variants against {reference}{setting.suffix}",
        ("τ", *columns_of(setting), "Δ"),
        tuple(rows),
        notes=(f"Δ: the average's difference to {reference}'s, paired by prompt and by run.",),
    )
