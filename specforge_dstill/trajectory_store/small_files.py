"""A folder's small files, whether it lies on this machine or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from specforge_dstill.files import reading, remove_quietly, write_atomically
from specforge_dstill.trajectory_store.folder import read_file


class SmallFiles(Protocol):
    """Errors of the storage are ``UserError``s of one line."""

    def names(self) -> list[str]:
        """Of everything in the folder, as far as it is listed; empty where there is none."""
        ...

    def read(self, name: str) -> bytes | None:
        """A file's content; None when there is none."""
        ...

    def write(self, name: str, content: bytes) -> object:
        """Make or replace a file."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...

    def place(self, name: str) -> Path | str:
        """Where a file is: a path on this machine, or a URI elsewhere."""
        ...


@dataclass(frozen=True)
class LocalFiles:
    """Those of a folder of this machine."""

    folder: Path

    def names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        with reading(self.folder):
            return [path.name for path in self.folder.iterdir()]

    def read(self, name: str) -> bytes | None:
        return read_file(self.folder, name)

    def write(self, name: str, content: bytes) -> None:
        write_atomically(self.folder / name, content)

    def remove(self, name: str) -> None:
        remove_quietly(self.folder / name)

    def place(self, name: str) -> Path:
        return self.folder / name
