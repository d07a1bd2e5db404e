"""A refinement as a figure: a row a pass, a cell darker the surer the pass was of its token."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specforge_dstill.evaluation.refinement import Refinement, Slot, State
from specforge_dstill.evaluation.refinement_text import MASK, mixed, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Blue where the endpoint agrees or nothing is compared, orange where it differs: Okabe and Ito's,
# which colour-blind readers tell apart.
_AGREES = ((214, 232, 243), (52, 146, 199))
_DIFFERS = ((251, 226, 212), (226, 120, 50))
_KEPT, _KEPT_DIFFERS, _EMPTY = "#f3f7fa", "#fdf3ed", "#f6f6f6"
_DIFFERS_TEXT, _GREY = "#b24a00", "#8a8a8a"
_INCHES_PER_CHARACTER = 0.085


def plot_refinement(
    refined: Refinement, name: Callable[[int], str], path: Path, *, title: str
) -> None:
    """Draw a refinement and save it.

    Args:
        name: what a token is shown as.
        path: the file; its suffix chooses the format (.png, .svg, .pdf).

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    names = {token: name(token) for token in refined.tokens()}
    widest = max(map(len, names.values()))
    column = max(0.62, 0.2 + _INCHES_PER_CHARACTER * widest)
    rows = len(refined.passes) + (2 if refined.has_reference else 0)
    figure = Figure(figsize=(1.1 + column * refined.block_size, 1.35 + 0.46 * rows), dpi=150)
    axes = figure.subplots()
    for y, cells in enumerate(refined.passes):
        for x, cell in enumerate(cells):
            _draw_cell(axes, x, y, cell, refined.agrees[x], names)
    if refined.has_reference:
        _draw_reference(axes, refined, names)
    _finish(axes, refined, rows, title)
    figure.set_layout_engine("constrained")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # drawn as an empty box
        figure.savefig(path)


def _draw_cell(
    axes: Axes, x: int, y: int, cell: Slot, agrees: bool | None, names: dict[int, str]
) -> None:
    differs = agrees is False
    _box(axes, x, y, _background(cell, differs))
    token = MASK if cell.token is None else names[cell.token]
    kept = {"color": _DIFFERS_TEXT if differs else "#404040"}
    style = {State.MASKED: {"color": _GREY, "style": "italic"}, State.KEPT: kept}.get(
        cell.state, {"color": "black", "weight": "bold"}
    )
    if cell.probability is None:
        _write(axes, x, y, token, **style)
        return
    _write(axes, x, y - 0.13, token, **style)
    colour = _GREY if cell.state is State.MASKED else "black"
    _write(axes, x, y + 0.24, percent(cell.probability), color=colour, fontsize=6.5)


def _background(cell: Slot, differs: bool) -> str:
    if cell.state is State.MASKED:
        return _EMPTY
    if cell.state is State.ANCHOR:
        return "#d9d9d9"
    if cell.state is State.KEPT:
        return _KEPT_DIFFERS if differs else _KEPT
    ends = _DIFFERS if differs else _AGREES
    red, green, blue = mixed(*ends, cell.probability)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _draw_reference(axes: Axes, refined: Refinement, names: dict[int, str]) -> None:
    y = len(refined.passes) + 0.35
    for x, (token, agrees) in enumerate(zip(refined.reference, refined.agrees, strict=True)):
        if token is None:
            continue
        colour = {True: "black", False: _DIFFERS_TEXT, None: _GREY}[agrees]
        _write(axes, x, y, names[token], color=colour)
        if agrees is not None:
            _write(axes, x, y + 0.6, "agrees" if agrees else "differs", color=colour, fontsize=6.5)


def _box(axes: Axes, x: int, y: int, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white"))


def _finish(axes: Axes, refined: Refinement, rows: int, title: str) -> None:
    passes = len(refined.passes)
    ticks = [*map(float, range(passes)), *([passes + 0.35] if refined.has_reference else [])]
    labels = [f"pass {t}" for t in range(1, passes + 1)]
    axes.set_yticks(ticks, [*labels, *(["reference"] if refined.has_reference else [])])
    axes.set_xticks(range(refined.block_size))
    axes.set_xlim(-0.55, refined.block_size - 0.45)
    axes.set_ylim(rows - 0.4 if refined.has_reference else rows - 0.5, -0.55)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10, pad=12)
    note = "position in the block; coloured: committed by this pass, with its probability then"
    if refined.has_reference:
        note += "; orange: differs from the reference"
    if refined.shows_beliefs:
        note += "; grey: believed at this pass, not committed"
    axes.set_xlabel(note, fontsize=7.5, color=_GREY, loc="left")


def _write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    # A dollar sign would begin mathematics.
    place = {"ha": "center", "va": "center", "fontsize": 8.5}
    axes.text(x, y, text.replace("$", r"\$"), **{**place, **style})
