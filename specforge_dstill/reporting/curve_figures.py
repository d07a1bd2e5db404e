"""Training curves: a figure for each number that was logged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from specforge_dstill.reporting.curves import Curve
from specforge_dstill.reporting.figures import Palette, legend, new_axes, rule, svg
from specforge_dstill.reporting.settings import Method
from specforge_dstill.reporting.tables import Picture

_TITLES = {
    "accept_length": "acceptance length of the training blocks",
    "acc": "accuracy on the training blocks",
    "loss": "loss",
}
_NOTES = {
    "accept_length": "Teacher-forced, anchor included: not τ, which is measured by decoding.",
    "loss": "Losses of different objectives cannot be compared with each other.",
}
_HELD_OUT = re.compile(r"eval/tau_(\d+)")
_HELD_OUT_NOTE = (
    "1 + mean accepted prefix of blocks at fixed places of held-out samples; the τ of an "
    "evaluation is over the rounds of decoding, which crowd where drafts are short."
)
#: Above this many points marks would hide the line.
_MARKED = 40


def curve_pictures(
    curves: Sequence[Curve], palette: Palette, *, about: str = ""
) -> Iterator[Picture]:
    """By metric, in a fixed order; those with two points or more.

    Args:
        about: which trainings they are of, for the notes.
    """
    long = [curve for curve in curves if len(curve.points) > 1]
    metrics = dict.fromkeys(curve.metric for curve in long)
    for number, metric in enumerate(sorted(metrics, key=_order)):
        figure, axes = new_axes(3.0)
        for curve in long:
            if curve.metric == metric:
                style = palette.style(Method(curve.name, 1))
                marks = {} if len(curve.points) <= _MARKED else {"marker": "none"}
                axes.plot(*zip(*curve.points, strict=True), label=curve.name, **{**style, **marks})
        axes.set_xlabel("optimizer step")
        rule(axes, "y")
        legend(figure, axes)
        title, note = _words(metric)
        notes = tuple(filter(None, (about, note)))
        yield Picture(title, svg(figure, name=f"training{number}", description=title), notes)


def _words(metric: str) -> tuple[str, str | None]:
    """Title and note."""
    held_out = _HELD_OUT.fullmatch(metric)
    if held_out:
        passes = "1 pass" if held_out[1] == "1" else f"{held_out[1]} passes"
        return f"Training: block acceptance on held-out samples, {passes}", _HELD_OUT_NOTE
    return f"Training: {_TITLES.get(metric, metric)}", _NOTES.get(metric)


def _order(metric: str) -> tuple[int, int, str]:
    names = list(_TITLES)
    held_out = _HELD_OUT.fullmatch(metric)
    passes = int(held_out[1]) if held_out else 0
    return (names.index(metric) if metric in names else len(names), passes, metric)
