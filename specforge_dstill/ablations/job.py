"""One command of a grid, and what its result depends on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specforge_dstill.errors import UserError
from specforge_dstill.modes.checkpoints import find_state_file


@dataclass(frozen=True)
class Job:
    """One command.

    Attributes:
        name: such as ``seed-0/student``; also its folder's below the output folder.
        command: its words.
        needs: the names of jobs that must be done before.
        settings: what its result depends on.
        inputs: so does this, of the files that the settings name; without what is not known.
        sources: those of ``needs`` whose result is in its own; a collection stands for its teacher.
        remade: whether it is simply done again under other settings; a training is refused.
        fresh: words for its first start only.
        latest: a checkpoint that it goes on from, and that it leaves; None for other jobs.
        in_turn: jobs of the same word here are not run at the same time; "" is no such word.
    """

    name: str
    folder: Path
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    remade: bool = False
    fresh: tuple[str, ...] = ()
    latest: Path | None = None
    in_turn: str = ""

    def words(self) -> list[str]:
        """The command as it is to be started now."""
        checkpoint = self.checkpoint()
        if checkpoint is not None:
            return [*self.command, f"training.resume_from={checkpoint}"]
        return [*self.command, *self.fresh]

    @property
    def lacks_checkpoint(self) -> bool:
        """Whether what it should have left, once it is done, is not there."""
        return self.latest is not None and not self.latest.exists()

    def checkpoint(self) -> Path | None:
        """The one that it goes on from, None before the first."""
        if self.latest is None or not self.folder.is_dir():
            return None
        if self.latest.exists():
            return self.latest
        # A kill between a first checkpoint and its link.
        with suppress(UserError):
            state = find_state_file(str(self.folder))
            return state and state.parent
        return None
