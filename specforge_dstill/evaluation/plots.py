"""Pictures of an evaluation."""

from __future__ import annotations

from math import ceil, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specforge_dstill.evaluation.report import Report, Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Inches of the right-hand panel.
_LINES_WIDTH = 4.6
#: Width of all bars of a data set, as a share of the room between data sets.
_BARS = 0.86
#: Above this many bars their values no longer fit beside each other.
_LABELLED_BARS = 31


def plot_acceptance(report: Report, path: Path) -> None:
    """Draw tau by data set and acceptance by position, and save them as one picture.

    A drafter keeps its colour in both; one pass is solid, more passes are pale bars and dashed
    lines.

    Args:
        path: the file; its suffix chooses the format (.png, .svg, .pdf).

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    groups = _groups(report)
    bars_width = min(max(4.5, 0.32 * len(groups) * len(report.scores)), 10.0)
    width = bars_width + _LINES_WIDTH
    figure = Figure(figsize=(width, 4.6), dpi=150)
    bars, lines = figure.subplots(1, 2, width_ratios=[bars_width, _LINES_WIDTH])
    for index, score in enumerate(report.scores):
        _draw_bars(bars, report, score, index, groups)
        _draw_line(lines, report, score)
    _finish_bars(bars, groups)
    _finish_lines(lines, report)
    handles, names = lines.get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside lower center", ncols=_columns(names, width), frameon=False
    )
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    figure.savefig(path)


def _columns(names: list[str], width: float) -> int:
    """Columns of a legend that fits in ``width`` inches, its rows evenly filled."""
    fitting = max(1, int(width / (0.9 + 0.085 * max(map(len, names)))))
    return ceil(len(names) / ceil(len(names) / fitting))


def _groups(report: Report) -> list[str]:
    """The data sets and, if there are several, their average."""
    names = list(report.data_sets)
    return [*names, "Average"] if len(names) > 1 else names


def _draw_bars(axes: Axes, report: Report, score: Score, index: int, groups: list[str]) -> None:
    width = _BARS / len(report.scores)
    values = [*score.tau.values(), score.average][: len(groups)]
    places = [group - _BARS / 2 + (index + 0.5) * width for group in range(len(groups))]
    drawn = axes.bar(places, values, width=0.92 * width, **_bar_style(report, score))
    if len(groups) * len(report.scores) <= _LABELLED_BARS:
        labels = ["" if isnan(value) else f"{value:.2f}" for value in values]
        axes.bar_label(drawn, labels=labels, padding=2, fontsize=7)


def _draw_line(axes: Axes, report: Report, score: Score) -> None:
    share = score.by_position(block_size=report.block_size)
    axes.plot(
        range(1, report.block_size),
        [100 * value for value in share],
        color=_colour(report, score),
        linestyle="-" if score.steps == 1 else "--",
        marker="o",
        markersize=3.5,
        linewidth=1.6,
        label=_label(score),
    )


def _finish_bars(axes: Axes, groups: list[str]) -> None:
    axes.set_title("Mean acceptance length τ", loc="left", fontsize=11)
    axes.set_ylabel("tokens a round, anchor included")
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.08)
    _plain(axes)


def _finish_lines(axes: Axes, report: Report) -> None:
    several = ", mean of data sets" if len(report.data_sets) > 1 else ""
    axes.set_title(f"Acceptance by position{several}", loc="left", fontsize=11)
    axes.set_xlabel("position in the block")
    axes.set_ylabel("rounds that accept it, %")
    axes.set_xticks(_ticks(report.block_size))
    axes.set_ylim(0, 100)
    _plain(axes)


def _ticks(block_size: int) -> range:
    return range(1, block_size, 1 if block_size <= 17 else 2)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def _bar_style(report: Report, score: Score) -> dict[str, Any]:
    colour = _colour(report, score)
    if score.steps == 1:
        return {"facecolor": colour, "edgecolor": colour}
    return {"facecolor": _pale(colour), "edgecolor": colour, "linestyle": "--"}


def _pale(colour: str) -> tuple[float, ...]:
    """The colour mixed with white, one part to two."""
    from matplotlib.colors import to_rgb

    return tuple(1 - (1 - part) / 3 for part in to_rgb(colour))


def _colour(report: Report, score: Score) -> str:
    drafters = list(dict.fromkeys(s.drafter for s in report.scores))
    return _COLOURS[drafters.index(score.drafter) % len(_COLOURS)]


def _label(score: Score) -> str:
    return f"{score.drafter}, {score.steps} {'pass' if score.steps == 1 else 'passes'}"
