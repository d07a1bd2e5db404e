"""What all figures share: colours and marks by drafter, and SVG that follows the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from specforge_dstill.evaluation.intervals import Estimate
from specforge_dstill.reporting.settings import Method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Stand-ins that a figure is drawn with, and what they become in the page: a colour of its style,
#: which has one set of them for light and one for dark. They are Okabe and Ito's, which
#: colour-blind readers tell apart; drafters differ in their marks, too.
_SERIES = tuple(f"#f0000{i}" for i in range(8))
_INK, _GRID, _PAPER = "#0000f1", "#0000f2", "#0000f3"
_IN_PAGE = {
    **{colour: f"var(--m{i})" for i, colour in enumerate(_SERIES[:-1])},
    _SERIES[-1]: "currentColor",
    _INK: "currentColor",
    _GRID: "var(--grid)",
    _PAPER: "var(--paper)",
}
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "h")
#: Inches. Narrow, so that on a phone the letters are still as large as text.
_WIDTH = 5.2
_POINTS = 11
_LEGEND_ROW = 0.22


@dataclass(frozen=True)
class Palette:
    """The same colour and mark for a drafter in every figure."""

    drafters: tuple[str, ...]

    def style(self, method: Method) -> dict[str, Any]:
        """One pass is solid and filled, more are dashed and hollow."""
        index = self.drafters.index(method.drafter)
        colour = _SERIES[index % len(_SERIES)]
        # Past the last colour the marks move on, so that no two drafters look alike for long.
        mark = _MARKS[(index + index // len(_SERIES)) % len(_MARKS)]
        once = method.steps <= 1
        return {
            "color": colour,
            "marker": mark,
            "linestyle": "-" if once else "--",
            "markerfacecolor": colour if once else _PAPER,
            "markersize": 5,
            "linewidth": 1.6,
        }


def new_axes(height: float) -> tuple[Figure, Axes]:
    """An empty figure of ``height`` inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(_INK)
    axes.tick_params(colors=_INK, labelsize=_POINTS)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=_INK, fontsize=_POINTS)
    axes.set_axisbelow(True)
    return figure, axes


def rule(axes: Axes, axis: Literal["x", "y"]) -> None:
    """Pale lines across an axis."""
    axes.grid(axis=axis, color=_GRID, linewidth=0.8)


def level(axes: Axes, height: float) -> None:
    """A dotted line across the axes."""
    axes.axhline(height, color=_INK, linewidth=0.8, linestyle=":")


def error(estimate: Estimate) -> tuple[float, float]:
    """How far whiskers reach below and above; nowhere without an interval over prompts."""
    interval = estimate.over_prompts
    if interval is None:
        return 0.0, 0.0
    # A mean lies inside its interval, but for rounding.
    return max(0.0, estimate.value - interval.low), max(0.0, interval.high - estimate.value)


def legend(figure: Figure, axes: Axes) -> None:
    """Below the axes, one entry a label; the figure grows by its rows."""
    handles, labels = axes.get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))
    longest = max(map(len, entries), default=0)
    columns = max(1, min(len(entries), int(60 / (longest + 7))))
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * ceil(len(entries) / columns))
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=_POINTS,
        labelcolor=_INK,
    )


def svg(figure: Figure, *, name: str, description: str) -> str:
    """The figure as an element for a page.

    Args:
        name: unique in the page; its parts' ids begin with it.
        description: for readers who do not see it.
    """
    import matplotlib

    buffer = io.StringIO()
    # Letters stay letters: they can be found and take the page's font.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>\s*", "", drawn, flags=re.DOTALL)
    # Its style element would reach the whole page.
    drawn = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{name}-", drawn)
    drawn = re.sub('font: ([0-9.]+)px [^;"]*', r"font: \1px inherit", drawn)
    for stand_in, colour in _IN_PAGE.items():
        drawn = drawn.replace(stand_in, colour)
    words = f'<svg role="img" aria-label="{escape(description)}" '
    drawn = re.sub(r' (width|height)="[0-9.]+pt"', "", drawn, count=2)
    return drawn.replace("<svg ", words, 1).strip()


def palette(drafters: Sequence[str]) -> Palette:
    """Colours in the order in which drafters appear."""
    return Palette(tuple(dict.fromkeys(drafters)))
