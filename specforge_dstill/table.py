"""Tables and amounts in plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, isnan

#: A cell without a number.
NOTHING = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A ruled table, its first column to the left and the others to the right.

    Below an empty heading there is no rule and the cells (bars) are to the left.
    """
    lines: list[Sequence[str]] = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(
        1, ["-" * width if name else "" for name, width in zip(header, widths, strict=True)]
    )
    left = [i == 0 or not name for i, name in enumerate(header)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in lines
    )


def wrapped(words: Iterable[str], *, indent: int = 2, width: int = 100) -> str:
    """``words`` joined by commas, in lines of at most ``width``; a word is not broken."""
    lines: list[str] = []
    for word in words:
        if lines and indent + len(lines[-1]) + 2 + len(word) < width:
            lines[-1] += f", {word}"
        else:
            lines.append(word)
    return "\n".join(" " * indent + line for line in lines)


def number_text(value: float | None, form: str = ".2f") -> str:
    """A number as ``form`` has it; :data:`NOTHING` for None and NaN."""
    return NOTHING if value is None or isnan(value) else format(value, form)


def byte_text(count: float) -> str:
    """``1.52 kB``: three significant digits, decimal units."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0:
        return f"{value:.0f} B"
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {_UNITS[unit]}"


def bar(share: float, *, width: int) -> str:
    """A horizontal bar of ``share`` (0..1) of ``width`` characters, in eighths."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + ("", *"▏▎▍▌▋▊▉")[rest]


def spark(counts: Sequence[float]) -> str:
    """A character a count, as high as its share of the largest."""
    most = max(counts, default=0) or 1
    return "".join(" ▁▂▃▄▅▆▇█"[ceil(8 * count / most)] for count in counts)
