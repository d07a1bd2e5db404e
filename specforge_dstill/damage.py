"""Pieces of a folder that are not as they were written, and setting them aside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from specforge_dstill.files import make_folder, sync_folder, writing

ASIDE = "damaged"


@dataclass(frozen=True)
class Damage:
    """A piece that is not as it was written: its path within the folder, and what is wrong."""

    piece: str
    problem: str


def set_aside(folder: Path, piece: str) -> Path | None:
    """Move ``folder/piece`` to ``folder/damaged/piece.N``, N the first number that is free.

    The number is at the end so that nothing takes the file for what it was. Nothing is deleted or
    overwritten. Returns where it is now; None when it is not there.

    Errors: ``UserError`` when the file system refuses.
    """
    source, number = folder / piece, 1
    if not source.is_file():
        return None
    make_folder((folder / ASIDE / piece).parent)
    while True:
        target = folder / ASIDE / f"{piece}.{number}"
        with writing(target):
            try:
                os.link(source, target)
            except FileExistsError:
                number += 1
                continue
            except OSError:  # a file system without hard links
                if target.exists():
                    number += 1
                    continue
                source.rename(target)
            else:
                source.unlink()
        sync_folder(target.parent)
        sync_folder(source.parent)
        return target
