"""Pieces of a folder that are not as they were written: finding them, setting them aside."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from specforge_dstill.checksums import sha256_of
from specforge_dstill.files import make_folder, sync_folder, writing

ASIDE = "damaged"


@dataclass(frozen=True)
class Damage:
    """A piece that is not as it was written: its path within the folder, and what is wrong."""

    piece: str
    problem: str


@dataclass(frozen=True)
class Check:
    """A piece that is yet to be read; ``problem`` reads it and says what is wrong, or None."""

    piece: str
    problem: Callable[[], str | None]


@dataclass(frozen=True)
class Checks:
    """What is to be verified of a folder.

    Attributes:
        found: damage that is known without reading whole files.
        unread: the pieces to read.
        notes: how far the folder came and what cannot be checked, in sentences.
    """

    found: tuple[Damage, ...]
    unread: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    def run(self, update: Callable[[int], None] = lambda count: None) -> list[Damage]:
        """Read everything, on threads; ``update`` is told of every piece. All the damage."""
        damages = list(self.found)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            problems = pool.map(lambda check: check.problem(), self.unread)
            for check, problem in zip(self.unread, problems, strict=True):
                if problem is not None:
                    damages.append(Damage(check.piece, problem))
                update(1)
        return damages


def size_problem(path: Path, expected: int) -> str | None:
    """What is wrong with a file that had ``expected`` bytes, as far as its size tells."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return None if size == expected else f"{size} bytes instead of {expected}"


def content_problem(path: Path, *, size: int, sha256: str) -> str | None:
    """What is wrong with a file that had this size and checksum; all of it is read."""
    problem = size_problem(path, size)
    if problem is not None:
        return problem
    try:
        checksum = sha256_of(path)
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return None if checksum == sha256 else "does not match its checksum"


def set_aside(folder: Path, piece: str) -> Path | None:
    """Move ``folder/piece`` to ``folder/damaged/piece.N``, N the first number that is free.

    The number is at the end so that nothing takes the file for what it was. Nothing is deleted or
    overwritten. Returns where it is now; None when it is not there.

    Raises: ``UserError`` when the file system refuses.
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
