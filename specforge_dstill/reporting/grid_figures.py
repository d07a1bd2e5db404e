"""S against concurrency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specforge_dstill.reporting.figures import Palette, error, legend, level, new_axes, rule, svg
from specforge_dstill.reporting.grid import SpeedGrid
from specforge_dstill.reporting.grid_tables import over_data_sets
from specforge_dstill.reporting.settings import Method
from specforge_dstill.reporting.tables import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def concurrency_pictures(grid: SpeedGrid, palette: Palette, *, name: str) -> Iterator[Picture]:
    """One for each temperature with several concurrencies; the mean over data sets."""
    for number, temperature in enumerate(grid.temperatures):
        figure, axes = new_axes(3.0)
        drawn = [_draw(axes, grid, temperature, m, palette) for m in grid.methods]
        if max(drawn, default=0) < 2:
            continue
        axes.set_xscale("log", base=2)
        axes.set_xticks(grid.concurrencies, map(str, grid.concurrencies))
        axes.minorticks_off()
        level(axes, 1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("requests at a time")
        axes.set_ylabel("speed-up S")
        rule(axes, "y")
        legend(figure, axes)
        where = f"{grid.target} in {grid.engine}, T = {temperature:g}{grid.suffix}"
        title = f"S against concurrency: {where}"
        several = "Mean over benchmarks. " if len(grid.data_sets) > 1 else ""
        notes = (f"{grid.reasoning}. {several}Whiskers: 95 % intervals over prompts.",)
        yield Picture(title, svg(figure, name=f"{name}-{number}", description=title), notes)


def _draw(axes: Axes, grid: SpeedGrid, temperature: float, method: Method, palette: Palette) -> int:
    """A line for a method; how many points it has."""
    found = {
        at: quantity.estimate()
        for at in grid.concurrencies
        if (quantity := over_data_sets(grid, grid.speedup, method, temperature, at)) is not None
    }
    if found:
        values = [estimate.value for estimate in found.values()]
        below, above = zip(*map(error, found.values()), strict=True)
        axes.errorbar(
            list(found),
            values,
            yerr=[below, above],
            label=str(method),
            capsize=2,
            **palette.style(method),
        )
    return len(found)
