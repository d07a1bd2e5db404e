"""``specforge-dstill evaluate``: how many drafted tokens the target accepts, and how fast."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specforge_dstill.arguments import (
    add_placement,
    add_run_file,
    json_object,
    positive,
    positive_number,
)
from specforge_dstill.console import say
from specforge_dstill.data.targets import DTYPES
from specforge_dstill.evaluation.plots import plot_acceptance
from specforge_dstill.evaluation.report import Report
from specforge_dstill.evaluation.serving_text import serving_text
from specforge_dstill.files import make_folder, write_atomically, writing
from specforge_dstill.reporting.facts import template_warnings
from specforge_dstill.servers.connect import ENGINES
from specforge_dstill.stopping import ending_though_stuck
from specforge_dstill.verbs.decode import DecodeRoute
from specforge_dstill.verbs.decode_checks import REJECT
from specforge_dstill.verbs.evaluate_options import (
    DECODE,
    SERVER,
    concurrencies,
    data_set,
    drafter_choice,
    fill_in,
    steps_list,
    temperatures,
)
from specforge_dstill.verbs.evaluation_plan import EvaluationPlan
from specforge_dstill.verbs.replay import ReplayRoute
from specforge_dstill.verbs.servers import ServersRoute

EXAMPLE = """example:
  specforge-dstill evaluate --replay --config dstill.yaml --steps 1,8 \\
      --prompts gsm8k=gsm8k.jsonl --prompts mt-bench=mt-bench.jsonl \\
      --drafter dflash=output/dflash-latest \\
      --drafter teacher=output/dstill_teacher-latest \\
      --drafter student=output/dstill_student-latest:1 --output results
Recovery (Eq. 13) needs a drafter named teacher, at one pass and at more, and one named student
(or student-…) at one pass; student-x is held against teacher-x where there is one.
Prompts of several turns give an answer a turn.
The target's answers are kept and used again. Other prompts are answered in addition; another
target, template, precision, or --max-new-tokens is refused and needs another --answers folder.

  specforge-dstill evaluate --decode --temperature 0.6 --top-p 0.95 --dtype bfloat16 \\
      --prompts gsm8k=gsm8k.jsonl --drafter student=output/dstill_student-latest:1
decodes for real, one prompt at a time: the target alone and with each drafter in turn, after four
runs of warm-up. S is the time per output token without a drafter over that with it, the reading
of the prompt included. "Same" counts greedy answers that are the target's own, token for token.
A run that was stopped goes on; other settings need another --output.
Both rules keep the target's distribution: compare samples from the target and accepts what was
drafted alike; reject draws the draft, too, at the same temperature, top-k and top-p.

  specforge-dstill evaluate --plain-server http://127.0.0.1:30000 --prompts gsm8k
  specforge-dstill evaluate --server http://127.0.0.1:30000 --drafter student --prompts gsm8k
asks a running server of SGLang or vLLM, started without its drafter and then with it, so that one
GPU node can do both; results gather in OUTPUT/servers.json, and S needs both. Two servers that run
side by side can be given in one command. Cells (drafter, data set, temperature, concurrency) that
are complete are not measured again, and their number is told: give a retrained drafter another
name or --output. The server formats prompts by the target's own chat template
with --template-kwargs, by default those of the run file's feature cache (--config, else a
dstill.yaml in the current folder), for which alone it is read.
A request's time runs from sending it to its whole answer, over its tokens; answers are not
streamed. Prompts are read anew for each cell (cache_salt). vLLM counts for the whole server, so
requests of others are noticed and refused; for intervals of τ start it with
--per-request-spec-decode-metrics summary.
"""
#: Report, table and picture of each route; they may share a folder.
REPLAYED = ("results.json", "table.txt", "acceptance.png")
DECODED = ("decoding.json", "decoding.txt", "decoding.png")
SERVED = ("servers.json", "servers.txt")
_STOP_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    add_run_file(parser)
    add = parser.add_argument
    add(
        "--replay",
        action="store_true",
        help="walk the target's greedy answers: exact for greedy decoding, without decoding",
    )
    add(
        "--decode",
        action="store_true",
        help="decode with each drafter and without: acceptance, speed-up, memory",
    )
    add(
        "--prompts",
        required=True,
        action="append",
        type=data_set,
        metavar="NAME[=SOURCE]",
        help="""one of gsm8k, math500, humaneval, mbpp, mt-bench, swe-bench from the Hub, as many
        prompts as the paper has; or NAME= a JSONL of {"turns": […]} or of conversations, or
        NAME=hub:DATASET[:split]; repeat it for more data sets""",
    )
    add("--limit", type=positive, metavar="N", help="the first N prompts of each data set")
    add(
        "--drafter",
        action="append",
        type=drafter_choice,
        metavar="NAME=CHECKPOINT[:STEPS]",
        help="""a run folder, a checkpoint or a Hugging Face folder; repeat it for more drafters;
        with --server the bare NAME of its drafter""",
    )
    add(
        "--steps",
        type=steps_list,
        metavar="1,K",
        help="numbers of passes, for drafters without their own (default: 1 and dstill.steps)",
    )
    add(
        "--max-new-tokens",
        type=positive,
        help="an answer's (default: 2048; against servers the paper's 4096)",
    )
    add("--output", type=Path, default=Path("results"), metavar="FOLDER", help="default: results")
    add(
        "--answers",
        type=Path,
        metavar="FOLDER",
        help="where --replay keeps the target's answers and features (default: OUTPUT/answers)",
    )
    add(
        "--template-kwargs",
        type=json_object,
        metavar="JSON",
        help="for the chat template (default: those of the feature cache, if there is one)",
    )
    add(
        "--batch-size",
        type=positive,
        help="answers at a time, of --replay (default: 16)",
    )
    add(
        "--dtype",
        choices=DTYPES,
        help="of target, features and drafters (default: float32, which makes replay exact)",
    )
    add(
        "--temperature",
        type=temperatures,
        metavar="T[,T]",
        help="0 is greedy; --decode takes one (default: 0; against servers 0,1)",
    )
    add("--top-p", type=float, metavar="P", help="as generate's, not with --replay (default: 1)")
    add("--top-k", type=int, metavar="K", help="as generate's, not with --replay (default: 0, all)")
    add(
        "--rule",
        choices=("compare", REJECT),
        help="with --decode; how drafts are verified (default: compare)",
    )
    add(
        "--min-confidence",
        type=float,
        metavar="P",
        help="with --decode and DSpark drafters of one pass: verify no token that is accepted with "
        "less than this probability, by the drafter's own confidence (default: whole blocks)",
    )
    add("--seed", type=int, help="with --decode, of sampled answers (default: 0)")
    add_placement(parser, default="cuda when there is a GPU")
    _add_servers(parser)


def _add_servers(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("against servers").add_argument
    add("--server", metavar="URL", help="a running server that has the drafter")
    add("--plain-server", metavar="URL", help="the same server without it, for S")
    add(
        "--concurrency",
        type=concurrencies,
        metavar="1,C",
        help="requests at a time (default: 1,8,16,32)",
    )
    add("--model", metavar="NAME", help="the model's name there (default: the only one)")
    add("--engine", choices=ENGINES, help="default: the server is asked")
    add("--timeout", type=positive_number, help="seconds an answer may take (default: 600)")


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, write the report, the tables and a picture."""
    way = fill_in(args)
    if way == SERVER:
        return _run_servers(args)
    plan = EvaluationPlan.of(args)
    route = DecodeRoute.of(plan) if way == DECODE else ReplayRoute(plan)
    report, left_out = route.measure()
    for warning in template_warnings(report.details):
        say(warning)
    for name, missing in left_out.items():
        if missing:
            reason = f"they fill the target's window (first: {missing[0]})"
            say(f"{name}: {len(missing)} turns left out, {reason}")
    names = DECODED if way == DECODE else REPLAYED
    results, table, picture = (args.output / name for name in names)
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
