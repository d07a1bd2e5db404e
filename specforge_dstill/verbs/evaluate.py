"""``specforge-dstill evaluate``: how many drafted tokens the target accepts, and how fast."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specforge_dstill.console import say
from specforge_dstill.data.generation_config import unheeded_text
from specforge_dstill.evaluation.plots import plot_acceptance
from specforge_dstill.evaluation.report import Report
from specforge_dstill.evaluation.serving_text import serving_text
from specforge_dstill.files import make_folder, write_atomically, writing
from specforge_dstill.reporting.facts import template_warnings
from specforge_dstill.stopping import ending_though_stuck
from specforge_dstill.verbs.decode import DecodeRoute
from specforge_dstill.verbs.earlier_results import check_nothing_lost
from specforge_dstill.verbs.evaluate_arguments import add_arguments as add_arguments
from specforge_dstill.verbs.evaluate_options import DECODE, SERVER, fill_in
from specforge_dstill.verbs.evaluation_plan import EvaluationPlan
from specforge_dstill.verbs.replay import ReplayRoute
from specforge_dstill.verbs.servers import ServersRoute

#: Report, table and picture of each route; they may share a folder.
REPLAYED = ("results.json", "table.txt", "acceptance.png")
DECODED = ("decoding.json", "decoding.txt", "decoding.png")
SERVED = ("servers.json", "servers.txt")
_STOP_S = 1.0


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, write the report, the tables and a picture."""
    way = fill_in(args)
    if way == SERVER:
        return _run_servers(args)
    plan = EvaluationPlan.of(args)
    names = DECODED if way == DECODE else REPLAYED
    results, table, picture = (args.output / name for name in names)
    if not args.overwrite:
        check_nothing_lost(results, plan)
    if plan.unheeded:
        say(unheeded_text(plan.unheeded))
    route = DecodeRoute.of(plan) if way == DECODE else ReplayRoute(plan)
    report, left_out = route.measure()
    for warning in template_warnings(report.details):
        say(warning)
    for name, missing in left_out.items():
        if missing:
            reason = f"they fill the target's window (first: {missing[0]})"
            say(f"{name}: {len(missing)} turns left out, {reason}")
    _write(report, results, table, picture)
    _print_table(report)
    if speeds := report.speed_text():
        print(f"\n{speeds}")
    print(f"\n{results}, {picture}")
    return 0


def _run_servers(args: argparse.Namespace) -> int:
    """Measure, print the table of all that is in the results, write it beside them."""
    results, table = (args.output / name for name in SERVED)
    # A stop does not wait for answers under way: cells are kept whole or not at all.
    with ending_though_stuck(say, grace_s=_STOP_S):
        report = ServersRoute.of(args).measure(results)
    for warning in template_warnings(report.details):
        say(warning)
    text = serving_text(report)
    write_atomically(table, f"{text}\n\n{report.details['note']}\n".encode())
    print(f"{text}\n\n{report.details['note']}\n\n{results}")
    return 0


def _write(report: Report, results: Path, table: Path, picture: Path) -> None:
    make_folder(results.parent)
    write_atomically(results, report.to_json().encode())
    tables = "\n\n".join(filter(None, (report.text(), report.speed_text())))
    write_atomically(table, f"{tables}\n".encode())
    with writing(picture):
        plot_acceptance(report, picture)


def _print_table(report: Report) -> None:
    """Ruled on a terminal, plain in a pipe or file."""
    if not sys.stdout.isatty():
        print(report.text())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for index, name in enumerate(report.header()):
        table.add_column(name, justify="left" if index == 0 else "right")
    for row in report.rows():
        table.add_row(*row)
    Console().print(table)
