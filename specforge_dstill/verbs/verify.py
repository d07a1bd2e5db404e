"""``specforge-dstill verify``: every byte of a feature cache or a trajectory store."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specforge_dstill.damage import Checks, Damage
from specforge_dstill.data.cache_folder import require_cache
from specforge_dstill.data.cache_verify import cache_checks, repair_cache
from specforge_dstill.data.progress import Progress
from specforge_dstill.errors import UserError
from specforge_dstill.trajectory_store.verify import repair_store, store_checks
from specforge_dstill.verbs.inspect import is_store

EXAMPLE = """example:
  specforge-dstill verify cache
  specforge-dstill verify --repair trajectories
Reads everything and prints a line for every damaged or missing piece. Exit status: 0 when all is
well (an unfinished cache or store, too, which is said), 1 when damage was found, 2 when PATH is
neither. A cache that capture did not make has no checksums: its structure is checked, the CRCs
within its files, and that no state is NaN or infinite.
--repair moves damaged pieces to PATH/damaged, deleting nothing, and takes back that they are done:
the same capture command, or --mode dstill_collect, then makes exactly these again.
"""
DAMAGED = 1


@dataclass(frozen=True)
class _Kind:
    name: str
    checks: Callable[[Path], Checks]
    repair: Callable[[Path, list[Damage]], dict[str, Path]]
    again: str


CACHE = _Kind("feature cache", cache_checks, repair_cache, "the same capture command")
STORE = _Kind("trajectory store", store_checks, repair_store, "--mode dstill_collect")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("path", metavar="PATH", help="a feature cache's or a trajectory store's")
    parser.add_argument(
        "--repair", action="store_true", help="set what is damaged aside, to be made again"
    )


def run(args: argparse.Namespace) -> int:
    """Verify, print, and repair if asked; 1 when there was damage."""
    folder = Path(args.path)
    kind = kind_of(args.path)
    checks = kind.checks(folder)
    with Progress("verify", total=len(checks.unread), unit="file") as progress:
        damages = checks.run(progress.advance)
    moved = kind.repair(folder, damages) if args.repair else {}
    for damage in damages:
        target = moved.get(damage.piece)
        aside = "" if target is None else f"; moved to {target}"
        if args.repair and target is None and (folder / damage.piece).exists():
            aside = "; left there: it is not recognisably a feature file"
        print(f"{folder / damage.piece}: {damage.problem}{aside}")
    for note in checks.notes:
        print(f"{folder}: {note}")
    read = f"{len(checks.unread)} files read"
    if not damages:
        print(f"{folder}: {kind.name}, {read}, no damage")
        return 0
    pieces = "1 piece" if len(damages) == 1 else f"{len(damages)} pieces"
    then = f"now run {kind.again}" if args.repair else "set aside with --repair"
    print(f"{folder}: {kind.name}, {read}, {pieces} damaged or missing; {then}")
    return DAMAGED


def kind_of(path: str) -> _Kind:
    """Whether a path is a cache or a store, told by its files.

    Raises: ``UserError`` when it is neither, or not on this machine.
    """
    folder = Path(path)
    if "://" in path:
        raise UserError(
            f"{path}: verify reads folders; a shard elsewhere is verified when it is fetched"
        )
    if is_store(path) or any(folder.glob("shard-*-of-*.arrow")):
        return STORE
    require_cache(folder)
    return CACHE
