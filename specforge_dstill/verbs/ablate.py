"""``specforge-dstill ablate``: variants of a training over several seeds, and their table."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from specforge_dstill.ablations.grid import Grid, read_grid
from specforge_dstill.ablations.jobs import Job, jobs_of, log_of, results_of
from specforge_dstill.ablations.machine import alone_in, slots
from specforge_dstill.ablations.schedule import Schedule
from specforge_dstill.console import DONE, FAILED, say
from specforge_dstill.files import write_atomically
from specforge_dstill.reporting.curves import Curve, read_curves
from specforge_dstill.reporting.folders import Results, read_folders
from specforge_dstill.reporting.page import make_page
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.settings import settings_of
from specforge_dstill.reporting.tables import Table, cell_text
from specforge_dstill.reporting.variant_table import variant_table
from specforge_dstill.table import text_table
from specforge_dstill.verbs.report import write_page

EXAMPLE = """example:
  specforge-dstill ablate --plan ablations.yaml     the commands, in order
  specforge-dstill ablate ablations.yaml            start them; go on with them
with, in ablations.yaml,

  run: dstill.yaml                 # what all variants share; output: ablations
  seeds: [0, 1, 2]
  jobs: 2                          # trainings at a time, of ranks: 1 process each
  evaluate: {prompts: {gsm8k: null}, limit: 128, max_new_tokens: 1024}
  variants:
    dflash: {mode: dflash}
    dflash-more: {mode: dflash, from: dflash, training.num_epochs: 3}
    teacher: {mode: dstill_teacher}
    student: {from: teacher}
    student-ce: {from: teacher, dstill.student.alpha: 0}
    student-k4: {from: teacher, dstill.steps: 4}

Every variant is trained on every seed, from: the variant that it starts from. Students of one
teacher share its records unless their own options change them (dstill.steps, dstill.collect.*);
all share the feature cache and the target's answers. What is done is not done again: the same
command goes on after a stop, also in the middle of a training that saves checkpoints
(training.save_interval), and with variants or seeds added. A job that fails is told, and those
that do not need it go on. Elsewhere than on this machine: launcher: "srun --nodes 2 … torchrun …",
the words before -m specforge.train. The page has the paper's Tables 4 to 8 for variants of the
names that report --help lists.
"""
TABLE, REPORT = "table.txt", "report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("grid", type=Path, metavar="GRID.yaml", help="variants, seeds, prompts")
    parser.add_argument(
        "--plan", action="store_true", help="print the commands in order, and start nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Train, measure, print the table, write the page."""
    grid = read_grid(args.grid)
    jobs = jobs_of(grid)
    if args.plan:
        print("\n".join(f"# {job.name}\n{shlex.join(job.words())}" for job in jobs))
        return DONE
    failed = _work(grid, jobs)
    measured = [folder for seed in grid.seeds if (folder := results_of(grid, seed)).is_dir()]
    if measured and not failed:
        _report(grid, read_folders(measured))
    return FAILED if failed else DONE


def _work(grid: Grid, jobs: Sequence[Job]) -> bool:
    """Run the jobs; whether one failed."""
    places = slots(jobs=grid.jobs, ranks=grid.ranks, gpus=_gpus(grid), env=os.environ)
    with alone_in(Path(grid.output)) as lock:
        schedule = Schedule(jobs, places, say, locks=(lock,))
        schedule.run()
    for name, reason in schedule.failed.items():
        say(f"{name} failed: {reason}")
    left = len(jobs) - len(schedule.done) - len(schedule.failed)
    if left:
        say(f"{left} jobs that need those were left; mend the cause and run the same command again")
    return bool(schedule.failed)


def _gpus(grid: Grid) -> int:
    """Those that jobs are given by us; a launcher places its own."""
    if grid.launcher:
        return 0
    import torch

    return torch.cuda.device_count()


def _report(grid: Grid, results: Sequence[Results]) -> None:
    output = Path(grid.output)
    page = make_page(
        results, title="Ablations", reference=grid.reference, curves=_curves(grid, grid.seeds[0])
    )
    reports = [(run, report) for run, found in enumerate(results) for report in found.reports]
    tables = [
        table
        for setting in settings_of(reports)
        for table in variant_table(Quantities(setting), grid.reference)
    ]
    text = "\n\n".join(map(_text, tables)) + "\n"
    write_atomically(output / TABLE, text.encode())
    written = write_page(page, output / REPORT)
    print(f"{text}\n{output / TABLE}, {written}")


def _curves(grid: Grid, seed: int) -> list[Curve]:
    return [c for name in grid.variants for c in read_curves(name, log_of(grid, seed, name))]


def _text(table: Table) -> str:
    rows = [[cell_text(cell) for cell in row] for row in table.rows]
    return "\n".join((table.title, "", text_table(table.header, rows), *table.notes))
