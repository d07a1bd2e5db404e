"""A page as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specforge_dstill.reporting.tables import Cell, Facts, Number, Page, Table

_SPECIAL = re.compile(r"([\\`*_\[\]<>|])")


def markdown(page: Page) -> str:
    """All but the figures, which are in the page beside it."""
    return "\n".join(_lines(page)) + "\n"


def _lines(page: Page) -> Iterator[str]:
    yield f"# {_escaped(page.title)}"
    for facts in page.facts:
        yield from _facts(facts)
    for warning in page.warnings:
        yield from ("", f"> **Warning:** {_escaped(warning)}")
    for note in page.notes:
        yield from ("", _escaped(note))
    for table in page.tables:
        yield from _table(table)


def _facts(facts: Facts) -> Iterator[str]:
    yield from ("", f"## {_escaped(facts.title)}", "")
    for name, value in facts.values:
        yield f"- {_escaped(name)}: {_escaped(value)}"


def _table(table: Table) -> Iterator[str]:
    yield from ("", f"## {_escaped(table.title)}", "")
    yield _row([_escaped(name) for name in table.header])
    yield _row([":--" if i < table.names else "--:" for i in range(len(table.header))])
    for row in table.rows:
        yield _row([_cell(cell) for cell in row])
    for note in table.notes:
        yield from ("", _escaped(note))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    if isinstance(cell, Number):
        return " ".join((cell.text, *cell.intervals))
    return _escaped(cell)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
