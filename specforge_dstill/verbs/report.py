"""``specforge-dstill report``: results in, a page out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from specforge_dstill.errors import UserError
from specforge_dstill.files import make_folder, write_atomically
from specforge_dstill.reporting.acceptance import Acceptance
from specforge_dstill.reporting.comparison_tables import SideBySide
from specforge_dstill.reporting.curves import read_curves
from specforge_dstill.reporting.folders import read_folders
from specforge_dstill.reporting.html import html
from specforge_dstill.reporting.markdown import markdown
from specforge_dstill.reporting.page import acceptances, make_page
from specforge_dstill.reporting.settings import Method
from specforge_dstill.reporting.tables import Page

EXAMPLE = """example:
  specforge-dstill report --output report results/seed1 results/seed2 results/seed3
writes report/report.html, one file that needs no other, and report/report.md.
Folders with equal settings over the same prompts are averaged: their runs are seeds. Others stand
side by side. Tables 5 to 8 of the paper appear when evaluate was given drafters of these names,
against servers once for each temperature and number of requests at a time:
  5  dflash, dflash-more (the paper: 10 epochs instead of 5; here: as many more steps as the student
     gets), student
  6  student-root (p_root = 1), student
  7  student-ce (alpha 0), student, student-kd (alpha 1)
  8  student, student-weighted (trajectory weights)
Curves of training: --training dflash=dflash.log, in the colour of the drafter of that name.
Other variants: --compare student-k4,student, or teacher:4,teacher:8 at so many passes.
"""
HTML, MARKDOWN = "report.html", "report.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("folders", nargs="+", type=Path, metavar="FOLDER", help="an --output folder of evaluate")
    add("--output", type=Path, default=Path("report"), metavar="FOLDER", help="default: report")
    add("--title", default="Acceptance and speed", help="of the page")
    add(
        "--compare",
        action="append",
        default=[],
        type=comparison,
        metavar="NAME[:STEPS],…",
        help="a table of these drafters side by side; repeat it for more tables",
    )
    add(
        "--against", metavar="NAME", help="a table of all drafters and their difference to this one"
    )
    add(
        "--training",
        action="append",
        default=[],
        type=training,
        metavar="NAME=PATH",
        help="curves from a training's log or its folder of TensorBoard files; repeat it",
    )


def training(text: str) -> tuple[str, Path]:
    """An option's NAME=PATH."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return name, Path(path)


def comparison(text: str) -> SideBySide:
    """An option's NAME[:STEPS],NAME[:STEPS],…"""
    methods = [_method(one) for one in text.split(",")]
    if len(set(methods)) < max(2, len(methods)):
        raise argparse.ArgumentTypeError(f"{text!r}: two or more different drafters, with commas")
    title = " against ".join(map(str, methods))
    return SideBySide(title, tuple(methods), len(methods))


def _method(text: str) -> Method:
    name, colon, steps = text.partition(":")
    if not name or (colon and not steps.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME or NAME:STEPS")
    return Method(name, int(steps) if colon else 1)


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    curves = [curve for name, path in args.training for curve in read_curves(name, path)]
    results = read_folders(args.folders)
    if args.compare or args.against is not None:
        found = acceptances(results)
        for compared in args.compare:
            _check_measured("--compare", compared.methods, found)
        if args.against is not None:
            _check_measured("--against", [Method(args.against, 1)], found)
    page = make_page(
        results,
        title=args.title,
        comparisons=args.compare,
        reference=args.against,
        curves=curves,
    )
    print(write_page(page, args.output))
    return 0


def _check_measured(option: str, wanted: Sequence[Method], found: Sequence[Acceptance]) -> None:
    """UserError unless all that a table is to hold was measured alike somewhere."""
    known = dict.fromkeys(method for one in found for method in one.methods)
    missing = [_word(method) for method in wanted if method not in known]
    if missing:
        there = ", ".join(map(_word, known)) or "none"
        raise UserError(f"{option}: no acceptance of {missing[0]} was measured; there are: {there}")
    if not any(one.shared(wanted) for one in found):
        raise UserError(
            f"{option}: {', '.join(map(_word, wanted))} were not measured with the same settings"
        )


def _word(method: Method) -> str:
    """As options name it."""
    return method.drafter if method.steps == 1 else f"{method.drafter}:{method.steps}"


def write_page(page: Page, folder: Path) -> str:
    """Write both forms; their paths in words."""
    make_folder(folder)
    write_atomically(folder / HTML, html(page).encode())
    write_atomically(folder / MARKDOWN, markdown(page).encode())
    return f"{folder / HTML}, {folder / MARKDOWN}"
