"""A page as one HTML file that needs nothing else: style and figures stand in it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files

from specforge_dstill.reporting.tables import Cell, Facts, Number, Page, Picture, Table

STYLE = "style.css"


def html(page: Page) -> str:
    """The whole file."""
    return "\n".join(_lines(page)) + "\n"


def _lines(page: Page) -> Iterator[str]:
    yield "<!DOCTYPE html>"
    yield '<html lang="en">'
    yield "<head>"
    yield '<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield f"<title>{escape(page.title)}</title>"
    yield f"<style>\n{(files(__package__) / STYLE).read_text(encoding='utf-8')}</style>"
    yield "</head>"
    yield "<body>"
    yield "<main>"
    yield f"<h1>{escape(page.title)}</h1>"
    for facts in page.facts:
        yield from _facts(facts)
    for warning in page.warnings:
        yield f'<p class="warning"><strong>Warning:</strong> {escape(warning)}</p>'
    yield from _paragraphs(page.notes)
    for table in page.tables:
        yield from _table(table)
    if page.pictures:
        yield '<div class="pictures">'
        for picture in page.pictures:
            yield from _picture(picture)
        yield "</div>"
    yield "</main>"
    yield "</body>"
    yield "</html>"


def _facts(facts: Facts) -> Iterator[str]:
    yield f"<h2>{escape(facts.title)}</h2>"
    yield "<dl>"
    for name, value in facts.values:
        yield f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
    yield "</dl>"


def _table(table: Table) -> Iterator[str]:
    yield "<section>"
    yield f"<h2>{escape(table.title)}</h2>"
    # A wide table scrolls in its own box; a keyboard can reach the box and scroll it.
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
    yield "<table>"
    yield f"<thead><tr>{''.join(_heads(table))}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        yield f"<tr>{''.join(_cells(row, table.names))}</tr>"
    yield "</tbody>"
    yield "</table>"
    yield "</div>"
    yield from _paragraphs(table.notes)
    yield "</section>"


def _heads(table: Table) -> Iterator[str]:
    for index, name in enumerate(table.header):
        kind = ' class="name"' if index < table.names else ""
        yield f'<th scope="col"{kind}>{escape(name)}</th>'


def _cells(row: tuple[Cell, ...], names: int) -> Iterator[str]:
    for index, cell in enumerate(row):
        if index < names:
            yield f'<th scope="row" class="name">{escape(str(cell))}</th>'
        elif isinstance(cell, Number):
            small = "".join(f"<small>{escape(text)}</small>" for text in cell.intervals)
            yield f"<td>{escape(cell.text)}{small}</td>"
        else:
            yield f"<td>{escape(cell)}</td>"


def _picture(picture: Picture) -> Iterator[str]:
    yield "<figure>"
    yield f"<figcaption>{escape(picture.title)}</figcaption>"
    yield picture.svg
    yield from _paragraphs(picture.notes)
    yield "</figure>"


def _paragraphs(notes: tuple[str, ...]) -> Iterator[str]:
    for note in notes:
        yield f'<p class="note">{escape(note)}</p>'
