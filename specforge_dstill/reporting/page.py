"""The page of a set of results: which tables and figures there are, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from specforge_dstill.evaluation.intervals import DRAWS
from specforge_dstill.reporting.acceptance import Acceptance, loads
from specforge_dstill.reporting.acceptance_figures import position_picture, tau_picture
from specforge_dstill.reporting.comparison_tables import PAPERS, SideBySide, comparison_table
from specforge_dstill.reporting.curve_figures import curve_pictures
from specforge_dstill.reporting.curves import Curve
from specforge_dstill.reporting.facts import facts, serving_facts, warnings
from specforge_dstill.reporting.figures import Palette, palette
from specforge_dstill.reporting.folders import Results
from specforge_dstill.reporting.grid import SpeedGrid, decoded_grids
from specforge_dstill.reporting.grid_figures import concurrency_pictures
from specforge_dstill.reporting.grid_tables import grid_tables, single_request_table
from specforge_dstill.reporting.main_tables import table_1, table_4
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.serving import serving_grids
from specforge_dstill.reporting.settings import settings_of
from specforge_dstill.reporting.tables import Number, Page, Picture, Table
from specforge_dstill.reporting.variant_table import variant_table


def make_page(
    results: Sequence[Results],
    *,
    title: str,
    comparisons: Sequence[SideBySide] = (),
    reference: str | None = None,
    curves: Sequence[Curve] = (),
    about_curves: str = "",
) -> Page:
    """Everything that the results have something for.

    Args:
        reference: a drafter that all are set against in a table of their own.
        about_curves: which trainings they are of, said under each.
    """
    folders = [found.name for found in results]
    quantities, served = _measured(results)
    settings = [one.setting for one in quantities]
    grids = [*decoded_grids(quantities), *served]
    tables = [*table_1(quantities), *single_request_table(served)]
    tables += [*grid_tables(grids), *table_4(quantities)]
    for one in _acceptances(quantities, served):
        if reference is not None:
            tables += variant_table(one, reference)
        for comparison in (*PAPERS, *comparisons):
            tables += comparison_table(one, comparison)
    methods = [method for setting in settings for method in setting.methods]
    methods += [method for grid in grids for method in grid.methods]
    colours = palette([*(method.drafter for method in methods), *(curve.name for curve in curves)])
    return Page(
        title=title,
        facts=(
            *(facts(setting, folders) for setting in settings),
            *(serving_facts(grid, folders) for grid in served),
        ),
        warnings=(
            *chain.from_iterable(warnings(setting, folders) for setting in settings),
            *chain.from_iterable(grid.warnings for grid in served),
        ),
        notes=tuple(_about_intervals(tables)),
        tables=tuple(tables),
        pictures=(
            *_pictures(quantities, grids, colours),
            *curve_pictures(curves, colours, about=about_curves),
        ),
    )


def acceptances(results: Sequence[Results]) -> list[Acceptance]:
    """Where drafters can be set side by side: of each setting, then at each load of servers."""
    return _acceptances(*_measured(results))


def _acceptances(quantities: Sequence[Quantities], served: Sequence[SpeedGrid]) -> list[Acceptance]:
    return [*quantities, *loads(served)]


def _measured(results: Sequence[Results]) -> tuple[list[Quantities], list[SpeedGrid]]:
    """Of our own evaluations by setting, and of servers."""
    numbered = list(enumerate(results))
    settings = settings_of((run, report) for run, found in numbered for report in found.reports)
    served = serving_grids(
        {run: r.serving for run, r in numbered if r.serving is not None},
        after=sum(bool(setting.letter) for setting in settings),
    )
    return [Quantities(setting) for setting in settings], served


def _pictures(
    all_quantities: Sequence[Quantities], grids: Sequence[SpeedGrid], colours: Palette
) -> Iterator[Picture]:
    for number, quantities in enumerate(all_quantities):
        yield tau_picture(quantities, colours, name=f"tau{number}")
        yield position_picture(quantities, colours, name=f"position{number}")
    for number, grid in enumerate(grids):
        yield from concurrency_pictures(grid, colours, name=f"concurrency{number}")


def _about_intervals(tables: Sequence[Table]) -> Iterator[str]:
    numbers = [c for t in tables for row in t.rows for c in row if isinstance(c, Number)]
    if not any(number.estimate.over_prompts for number in numbers):
        return
    yield (
        f"[low, high]: 95 % interval over prompts (percentile bootstrap, {DRAWS:,} resamples, the "
        "same ones for all methods, so that differences and recovery are paired by prompt). It "
        "tells how much other prompts of the same kind would change the number, not other seeds."
    )
    runs = max(number.estimate.runs for number in numbers)
    if runs > 1:
        yield (
            f"{{low, high}}: 95 % interval over runs (Student's t of up to {runs} runs' numbers). "
            "Numbers are means over runs."
        )
