"""A refinement in characters: colour on a terminal, plain where there is none.

A pass takes two lines: the tokens, and under those that it commits its confidence in per cent.
Masked positions show a dot, or what the pass believed in brackets where that was recorded. Below
stand the reference and whether the endpoint agrees with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from specforge_dstill.evaluation.refinement import Refinement, Slot, State

MASK, NOTHING = "·", " "
_LONGEST = 12  # cells of a token
_GAP = 1
_MARKS = {True: ("✓", "green"), False: ("✗", "bold red"), None: (NOTHING, "")}
_DIM, _WRONG = "bright_black", "red"
# Backgrounds of a committing cell, from unsure to sure; the text on them is black.
_SURE = ((214, 239, 216), (64, 180, 99))
_SURE_WRONG = ((253, 219, 205), (240, 110, 90))

Fragment = tuple[str, str]  # text and rich style


@dataclass(frozen=True)
class _Line:
    """A label and one fragment a position."""

    label: str
    fragments: tuple[Fragment, ...]


def draw_text(refined: Refinement, name: Callable[[int], str], *, width: int) -> Text:
    """The picture, at most ``width`` cells wide where a column allows it.

    Args:
        name: what a token is shown as, see :func:`visible`.
    """
    lines = [_numbers(refined), *_pass_lines(refined, name), *_reference_lines(refined, name)]
    label = max(len(line.label) for line in lines)
    widths = [
        max(cell_len(line.fragments[i][0]) for line in lines) for i in range(refined.block_size)
    ]
    picture = Text()
    for chosen in _panels(widths, width - label):
        if picture:
            picture.append("\n")
        for line in lines:
            if line.label or any(line.fragments[i][0].strip() for i in chosen):
                picture.append_text(_row(line, chosen, widths, label)).append("\n")
    return picture


def _row(line: _Line, chosen: Sequence[int], widths: Sequence[int], label: int) -> Text:
    row = Text.assemble((line.label.ljust(label), "bold"))
    for i in chosen:
        text, style = line.fragments[i]
        row.append(" " * _GAP).append(set_cell_size(text, widths[i]), style)
    row.rstrip()
    return row


def visible(text: str) -> str:
    """A token's text on one line: blanks and line ends shown, long ones cut."""
    for blank, mark in ((" ", "▁"), ("\n", "⏎"), ("\r", "␍"), ("\t", "⇥")):
        text = text.replace(blank, mark)
    text = "".join(c if c.isprintable() else "�" for c in text) or "∅"
    return text if cell_len(text) <= _LONGEST else f"{set_cell_size(text, _LONGEST - 1)}…"


def _numbers(refined: Refinement) -> _Line:
    return _Line("position", tuple((str(i), _DIM) for i in range(refined.block_size)))


def _pass_lines(refined: Refinement, name: Callable[[int], str]) -> Iterator[_Line]:
    for t, row in enumerate(refined.passes, start=1):
        cells = list(zip(row, refined.agrees, strict=True))
        yield _Line(f"pass {t}", tuple(_token(c, agrees, name) for c, agrees in cells))
        yield _Line("", tuple(_probability(c) for c in row))


def _reference_lines(refined: Refinement, name: Callable[[int], str]) -> Iterator[_Line]:
    if not refined.has_reference:
        return
    shown = zip(refined.reference, refined.agrees, strict=True)
    yield _Line("reference", tuple(_reference(token, agrees, name) for token, agrees in shown))
    yield _Line("agrees", tuple(_MARKS[agrees] for agrees in refined.agrees))


def _token(cell: Slot, agrees: bool | None, name: Callable[[int], str]) -> Fragment:
    if cell.token is None:
        return MASK, _DIM
    text = name(cell.token)
    if cell.state is State.MASKED:
        return f"({text})", f"italic {_DIM}"
    if cell.state is State.ANCHOR:
        return text, "bold"
    if cell.state is State.COMMITTED:
        ends = _SURE_WRONG if agrees is False else _SURE
        red, green, blue = mixed(*ends, cell.probability)
        return text, f"black on rgb({red},{green},{blue})"
    return text, _WRONG if agrees is False else ""


def _probability(cell: Slot) -> Fragment:
    if cell.probability is None:
        return NOTHING, ""
    style = f"italic {_DIM}" if cell.state is State.MASKED else ""
    text = percent(cell.probability)
    return (f"({text})" if cell.state is State.MASKED else text), style


def _reference(token: int | None, agrees: bool | None, name: Callable[[int], str]) -> Fragment:
    if token is None:
        return NOTHING, ""
    return name(token), {True: "", False: "bold red", None: _DIM}[agrees]


def percent(share: float) -> str:
    """``97%``; only what is certain is 100 %, only what is impossible 0 %."""
    if 0.995 <= share < 1:
        return ">99%"
    return "<1%" if 0 < share < 0.005 else f"{100 * share:.0f}%"


def mixed(
    pale: tuple[int, int, int], full: tuple[int, int, int], share: float | None
) -> tuple[int, int, int]:
    """The colour ``share`` of the way from ``pale`` to ``full``; ``pale`` if that is not known."""
    share = min(max(share or 0.0, 0.0), 1.0)
    red, green, blue = (round(p + share * (f - p)) for p, f in zip(pale, full, strict=True))
    return red, green, blue


def _panels(widths: Sequence[int], room: int) -> list[range]:
    """Positions in as few groups as fit beside each other, of like sizes."""
    for count in range(1, len(widths) + 1):
        size = -(-len(widths) // count)
        groups = [
            range(start, min(start + size, len(widths))) for start in range(0, len(widths), size)
        ]
        if all(sum(_GAP + widths[i] for i in group) <= room for group in groups):
            return groups
    return [range(i, i + 1) for i in range(len(widths))]
