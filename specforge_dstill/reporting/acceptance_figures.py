"""Acceptance as figures: by benchmark and method, and by position in the block."""

from __future__ import annotations

from math import isfinite

import numpy as np

from specforge_dstill.evaluation.intervals import average, combine
from specforge_dstill.reporting.figures import Palette, error, legend, new_axes, rule, svg
from specforge_dstill.reporting.main_tables import columns_of
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.tables import Picture

#: Inches for a method in a benchmark, between benchmarks, and around the rows.
_ROW, _GAP, _AROUND = 0.17, 0.16, 0.8


def tau_picture(quantities: Quantities, palette: Palette, *, name: str) -> Picture:
    """Tau by benchmark and method: a mark a method, with its interval over prompts."""
    setting = quantities.setting
    methods = setting.methods
    groups = columns_of(setting)
    height = _AROUND + len(groups) * (_GAP + _ROW * len(methods))
    figure, axes = new_axes(height)
    room = len(methods) * _ROW + _GAP
    for column, group in enumerate(groups):
        for row, method in enumerate(methods):
            tau = (
                quantities.average_tau(method)
                if column == len(setting.data_sets)
                else quantities.tau(method, group)
            )
            estimate = tau.estimate()
            if not isfinite(estimate.value):
                continue
            place = column * room + (row + 0.5) * _ROW
            below, above = error(estimate)
            style = {**palette.style(method), "linestyle": "none"}
            axes.errorbar(
                estimate.value,
                place,
                xerr=[[below], [above]],
                label=str(method),
                capsize=2,
                **style,
            )
    middle = [index * room + len(methods) * _ROW / 2 for index in range(len(groups))]
    axes.set_yticks(middle, groups)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(groups) * room - _GAP / 2, -_GAP / 2)
    axes.set_xlabel("tokens a round, the target's own included")
    rule(axes, "x")
    legend(figure, axes)
    title = f"Acceptance length τ by benchmark{setting.suffix}"
    return Picture(title, svg(figure, name=name, description=title), (_whiskers(quantities),))


def position_picture(quantities: Quantities, palette: Palette, *, name: str) -> Picture:
    """How many rounds accept each position of the block."""
    setting = quantities.setting
    positions = range(1, setting.first.block_size)
    figure, axes = new_axes(3.0)
    for method in setting.methods:
        by_set = [quantities.accepts(method, name) for name in setting.data_sets]
        shares = [combine(average, *found).estimate() for found in zip(*by_set, strict=True)]
        values = 100 * np.array([share.value for share in shares])
        style = palette.style(method)
        axes.plot(positions, values, label=str(method), **{**style, "markersize": 4})
        bounds = [share.over_prompts for share in shares]
        if all(bounds):
            low = [100 * bound.low for bound in bounds if bound]
            high = [100 * bound.high for bound in bounds if bound]
            axes.fill_between(positions, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("position in the block")
    axes.set_ylabel("rounds that accept it, %")
    axes.set_xticks(range(1, setting.first.block_size, 2 if setting.first.block_size > 9 else 1))
    axes.set_ylim(0, 100)
    rule(axes, "y")
    legend(figure, axes)
    title = f"Acceptance by position{setting.suffix}"
    several = "Mean over benchmarks. " if len(setting.data_sets) > 1 else ""
    note = f"{several}Bands: 95 % intervals over prompts."
    return Picture(title, svg(figure, name=name, description=title), (note,))


def _whiskers(quantities: Quantities) -> str:
    several = len(quantities.setting.reports) > 1
    return "Whiskers: 95 % intervals over prompts" + (
        ", of the mean over runs." if several else "."
    )
