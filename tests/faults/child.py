"""What runs in a forked process: one of the package's commands, as one rank.

Importing torch and SpecForge takes seconds. A fork server imports this module once, so that a
process of these tests is there at once.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from specforge_dstill import cli, stopping, train

# What the commands import late: pyarrow's wish for pandas alone takes half a second.
for name in (
    *("accelerate.utils", "pandas", "pyarrow.compute", "specforge.training.assembly"),
    *("specforge.training.trainer", "specforge_dstill.data.capture", "specforge_dstill.modes"),
):
    with suppress(ImportError):
        import_module(name)

PEAK = "peak memory, KiB: "
# Python's audit events for what changes a folder or a file in it, if opened for writing.
_CHANGES = {"open", "os.rename", "os.link", "os.remove", "os.mkdir"}
_WRITES = os.O_WRONLY | os.O_RDWR


@dataclass
class Fault:
    """What goes wrong before the ``count``-th change to what lies in ``folder``.

    ``vanish`` is deleted then; without it the process kills itself.
    """

    folder: Path
    count: int
    vanish: Path | None = None

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook of the process."""
        if event not in _CHANGES or not isinstance(arguments[0], str | os.PathLike):
            return
        if event == "open" and not arguments[2] & _WRITES:
            return
        if not Path(arguments[0]).absolute().is_relative_to(self.folder):
            return
        self.count -= 1
        if self.count == 0:
            if self.vanish is None:
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                self.vanish.unlink()


def run(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    fault: Fault | None,
) -> None:
    """Run ``train …`` or a verb in ``folder``, printing into ``log``; exit with its status."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    stopping.GRACE_S = 1.0
    if fault is not None:
        sys.addaudithook(fault)
    status = train.main(words[1:]) if words[0] == "train" else cli.main(words)
    print(f"{PEAK}{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}", flush=True)
    sys.exit(status)
