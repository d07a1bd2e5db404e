"""Printing what is in a trajectory store."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from specforge_dstill.console import say
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.refinement import Refinement
from specforge_dstill.evaluation.refinement_plot import plot_refinement
from specforge_dstill.evaluation.refinement_text import draw_text
from specforge_dstill.evaluation.statistics_text import acceptance_table, position_table
from specforge_dstill.evaluation.trajectory_statistics import TrajectoryStatistics
from specforge_dstill.files import writing
from specforge_dstill.table import byte_text, wrapped
from specforge_dstill.verbs.references import Name

_PIPE_WIDTH = 120


def print_summary(summary: dict[str, Any]) -> None:
    """Settings and counts as lines."""
    print(f"{summary['path']}: {summary['kind']}")
    if not summary["complete"]:
        print(
            f"  its collection is not finished: {summary['shards']:,} of "
            f"{summary['planned_shards']:,} shards are there"
        )
    print(
        f"  {summary['samples']:,} samples, {summary['blocks']:,} blocks, "
        f"{byte_text(summary['bytes'])} in {summary['shards']:,} shards"
    )
    print(wrapped(f"{name} {value}" for name, value in summary["settings"].items()))


def print_statistics(found: TrajectoryStatistics) -> None:
    """The tables."""
    print(f"\n{int(found.blocks):,} blocks, by position:\n")
    print(position_table(found))
    if found.accepted.sum():
        print(f"\nendpoint against the reference: {found.acceptance:.2f} tokens accepted, anchor")
        print("included, over text that the target wrote (teacher-forced, not decoded)")
        if found.root_accepted.sum():
            print(f"first pass's most probable tokens: {found.root_acceptance:.2f}")
        print(f"\n{acceptance_table(found)}")


def print_picture(refined: Refinement, name: Name, *, title: str) -> None:
    """In colour on a terminal, in plain characters in a pipe or file."""
    width = shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns
    print(f"{title}\n")
    Console(file=sys.stdout, highlight=False).print(
        draw_text(refined, name, width=width), soft_wrap=True, end=""
    )


def figure_path(path: Path) -> Path:
    """The file that a figure goes to: a name without a suffix gets .png.

    Raises:
        UserError: it is a folder, or its folder is not there.
    """
    if path.is_dir():
        raise UserError(f"--png {path}: is a folder; name a file in it, such as {path}/block.png")
    if not path.parent.is_dir():
        raise UserError(f"--png {path}: cannot be written: there is no folder {path.parent}")
    return path if path.suffix else path.with_name(f"{path.name}.png")


def save_figure(refined: Refinement, name: Name, path: Path, *, title: str) -> None:
    """The picture as a figure. UserError when the file cannot be written."""
    try:
        with writing(path):
            plot_refinement(refined, name, path, title=title)
    except ValueError as error:
        raise UserError(f"--png {path}: {error}") from error
    say(f"wrote {path}")
