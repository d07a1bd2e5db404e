"""``specforge-dstill ablate``: variants of a training over several seeds, and their table."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from specforge_dstill.ablations.grid import Grid, read_grid
from specforge_dstill.ablations.job import Job
from specforge_dstill.ablations.jobs import evaluation_of, jobs_of, log_of, results_of
from specforge_dstill.ablations.machine import alone_in, slots
from specforge_dstill.ablations.notes import read_notes
from specforge_dstill.ablations.schedule import Schedule
from specforge_dstill.console import DONE, FAILED, say
from specforge_dstill.data.benchmarks import BENCHMARKS
from specforge_dstill.data.hub import hub_name
from specforge_dstill.errors import UserError
from specforge_dstill.files import write_atomically
from specforge_dstill.maths.reveal_schedule import check_steps
from specforge_dstill.reporting.curves import Curve, read_curves
from specforge_dstill.reporting.folders import read_folders
from specforge_dstill.reporting.page import make_page
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.settings import settings_of
from specforge_dstill.reporting.tables import Table, cell_text
from specforge_dstill.reporting.variant_table import variant_table
from specforge_dstill.runfile import load_run
from specforge_dstill.table import text_table
from specforge_dstill.verbs.evaluation_inputs import DataSet
from specforge_dstill.verbs.report import write_page
from specforge_dstill.verbs.run_facts import block_size

EXAMPLE = """example:
  specforge-dstill ablate --plan ablations.yaml     the commands that are left
  specforge-dstill ablate ablations.yaml            start them; go on with them
with, in ablations.yaml,

  run: dstill.yaml                 # what all variants share; output: ablations
  seeds: [0, 1, 2]
  jobs: 2                          # trainings at a time, of ranks: 1 process each
  evaluate: {prompts: {gsm8k: null}, limit: 128, max_new_tokens: 1024}
  reference: student               # the variant that the others are set against
  variants:
    dflash: {mode: dflash}
    dflash-more: {mode: dflash, from: dflash, training.num_epochs: 3}
    teacher: {mode: dstill_teacher}
    student: {from: teacher}
    student-ce: {from: teacher, dstill.student.alpha: 0}
    student-k4: {from: teacher, dstill.steps: 4}

Every variant is trained on every seed, from: the variant that it starts from. Students of one
teacher share its records unless their own options change them (dstill.steps, dstill.collect.*,
data.max_length, data.hidden_states_path); all share the feature cache and the target's answers.
What is done is not done again: the same command goes on after a stop, also in the middle of a
training that saves checkpoints (training.save_interval), and with variants or seeds added. Where
the settings of a training, or the contents of its draft config, target or caches, have changed
since, the command stops and names the folder to remove. A job that fails is told, and those that
do not need it go on; the tables are of the seeds that are whole. Elsewhere than on this machine:
launcher: "srun --nodes 2 … torchrun …", the words before -m specforge.train, which must wait until
it ends. The page has the paper's Tables 4 to 8 for variants of the names that report --help lists.
"""
TABLE, REPORT = "table.txt", "report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("grid", type=Path, metavar="GRID.yaml", help="variants, seeds, prompts")
    parser.add_argument(
        "--plan",
        action="store_true",
        help="print the commands that are left, in order, and start nothing",
    )


def run(args: argparse.Namespace) -> int:
    """Train, measure, print the table, write the page."""
    grid = read_grid(args.grid)
    if not Path(grid.run).is_file():
        raise UserError(f"{args.grid}: run: no file {grid.run} (paths count from {Path.cwd()})")
    jobs = jobs_of(grid)
    if args.plan:
        _plan(jobs)
        return DONE
    _check_evaluation(args.grid, grid)
    if not _measured(grid, jobs):
        _check_prompts(args.grid, grid)
    schedule = _work(grid, jobs)
    measured = [seed for seed in grid.seeds if evaluation_of(seed) in schedule.done]
    if measured:
        _report(grid, measured)
    return FAILED if schedule.failed else DONE


def _plan(jobs: Sequence[Job]) -> None:
    """Each job's command; of those that are done the names."""
    notes = read_notes(jobs)
    for job in jobs:
        note = notes.get(job.name)
        if note is not None and note.done:
            print(f"# {job.name} is done")
        else:
            print(f"# {job.name}\n{shlex.join(job.words())}")


def _check_evaluation(path: Path, grid: Grid) -> None:
    """What evaluate would refuse in the end, before anything is trained.

    Raises:
        UserError: passes that no block has.
    """
    size = block_size(load_run(grid.run, (), "dflash"))
    for name, variant in grid.variants.items():
        for steps in variant.passes or ():
            try:
                check_steps(size, steps)
            except ValueError as error:
                raise UserError(f"{path}: variants.{name}.passes: {error}") from None


def _measured(grid: Grid, jobs: Sequence[Job]) -> bool:
    """Whether no evaluation is left, so that the prompts are no longer needed."""
    notes = read_notes(jobs)
    names = [evaluation_of(seed) for seed in grid.seeds]
    return all(name in notes and notes[name].done for name in names)


def _check_prompts(path: Path, grid: Grid) -> None:
    """The same of the prompts: of files all that are asked, of data sets on the Hub the first.

    Raises:
        UserError: no such data set, or prompts that cannot be had.
    """
    for name, source in grid.evaluate.prompts.items():
        where = f"{path}: evaluate.prompts.{name}"
        if source is None and name not in BENCHMARKS:
            raise UserError(
                f"{where}: is no benchmark ({', '.join(BENCHMARKS)}); name a file, or hub:DATASET"
            )
        on_the_hub = source is None or hub_name(source) is not None
        try:
            DataSet(name, source).prompts(limit=1 if on_the_hub else grid.evaluate.limit)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None


def _work(grid: Grid, jobs: Sequence[Job]) -> Schedule:
    """Run the jobs, and tell what could not be done."""
    places = slots(jobs=grid.jobs, ranks=grid.ranks, gpus=_gpus(grid), env=os.environ)
    with alone_in(Path(grid.output)) as lock:
        schedule = Schedule(jobs, places, say, locks=(lock,))
        schedule.run()
    for name, reason in schedule.failed.items():
        say(f"{name} failed: {reason}")
    left = len(jobs) - len(schedule.done) - len(schedule.failed)
    if left:
        say(f"{left} jobs that need those were left; mend the cause and run the same command again")
    return schedule


def _gpus(grid: Grid) -> int | None:
    """Those that jobs are given by us; None where a launcher places them."""
    if grid.launcher:
        return None
    import torch

    return torch.cuda.device_count()


def _report(grid: Grid, seeds: Sequence[int]) -> None:
    """The tables and the page of those seeds that were measured; others are told."""
    output, results = Path(grid.output), read_folders([results_of(grid, seed) for seed in seeds])
    page = make_page(
        results,
        title="Ablations",
        reference=grid.reference,
        curves=_curves(grid, seeds[0]),
        about_curves=f"Seed {seeds[0]}.",
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
    if missing := [str(seed) for seed in grid.seeds if seed not in seeds]:
        say(f"without seeds that were not trained and measured whole: {', '.join(missing)}")


def _curves(grid: Grid, seed: int) -> list[Curve]:
    """Of those trainings that logged a step: one may be shorter than its log interval."""
    found: list[Curve] = []
    for name in grid.variants:
        with suppress(UserError):
            found += read_curves(name, log_of(grid, seed, name))
    return found


def _text(table: Table) -> str:
    rows = [[cell_text(cell) for cell in row] for row in table.rows]
    return "\n".join((table.title, "", text_table(table.header, rows), *table.notes))
