"""The page of a set of results: which tables and figures there are, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from specforge_dstill.evaluation.intervals import DRAWS
from specforge_dstill.reporting.acceptance_figures import position_picture, tau_picture
from specforge_dstill.reporting.comparison_tables import PAPERS, Comparison, comparison_table
from specforge_dstill.reporting.facts import facts, warnings
from specforge_dstill.reporting.figures import palette
from specforge_dstill.reporting.folders import Results
from specforge_dstill.reporting.main_tables import table_1, table_4
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.settings import settings_of
from specforge_dstill.reporting.tables import Page, Picture, Table


def make_page(
    results: Sequence[Results], *, title: str, comparisons: Sequence[Comparison] = ()
) -> Page:
    """Everything that the results have something for."""
    folders = [found.name for found in results]
    settings = settings_of(
        (run, report) for run, found in enumerate(results) for report in found.reports
    )
    quantities = [Quantities(setting) for setting in settings]
    tables = [*table_1(quantities), *table_4(quantities)]
    for one in quantities:
        for comparison in (*PAPERS, *comparisons):
            tables += comparison_table(one, comparison)
    return Page(
        title=title,
        facts=tuple(facts(setting, folders) for setting in settings),
        warnings=tuple(chain.from_iterable(warnings(s, folders) for s in settings)),
        notes=tuple(_about_intervals(tables)),
        tables=tuple(tables),
        pictures=tuple(_pictures(quantities)),
    )


def _pictures(all_quantities: Sequence[Quantities]) -> Iterator[Picture]:
    colours = palette([method for q in all_quantities for method in q.setting.methods])
    for number, quantities in enumerate(all_quantities):
        yield tau_picture(quantities, colours, name=f"tau{number}")
        yield position_picture(quantities, colours, name=f"position{number}")


def _about_intervals(tables: Sequence[Table]) -> Iterator[str]:
    if not tables:
        return
    yield (
        f"[low, high]: 95 % interval over prompts (percentile bootstrap, {DRAWS:,} resamples, the "
        "same ones for all methods, so that differences and recovery are paired by prompt). It "
        "tells how much other prompts of the same kind would change the number, not other seeds."
    )
    runs = max(table.runs for table in tables)
    if runs > 1:
        yield (
            f"{{low, high}}: 95 % interval over runs (Student's t of up to {runs} runs' numbers). "
            "Numbers are means over runs."
        )
