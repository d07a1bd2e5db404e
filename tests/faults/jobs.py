"""Groups of ranks as forked processes: started in a moment, waited for, killed."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.faults.child import PEAK, Fault, run
from tests.modes.running import free_ports

_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.faults.child"])
# That torchrun gives a rank between SIGTERM and SIGKILL.
GRACE_S = 30.0


@dataclass(frozen=True)
class Job:
    """One command on some ranks."""

    ranks: Sequence[ForkServerProcess]
    logs: Sequence[Path]

    @property
    def printed(self) -> str:
        """What all ranks printed."""
        return "".join(log.read_text() for log in self.logs if log.exists())

    @property
    def told(self) -> str:
        """The one line, of whatever ranks, that tells of a mistake or a stop."""
        assert "Traceback" not in self.printed, self.printed
        lines = {
            line.removeprefix("specforge-dstill: ")
            for line in self.printed.splitlines()
            if re.match("specforge-dstill: (error|stopped)", line)
        }
        assert len(lines) == 1, self.printed
        return lines.pop()

    @property
    def peak_bytes(self) -> int:
        """The most memory that the only rank held."""
        (peak,) = re.findall(rf"^{PEAK}(\d+)$", self.printed, flags=re.MULTILINE)
        return 1024 * int(peak)

    def end(self) -> list[int | None]:
        """The exit statuses; once a rank fails the others are stopped, as torchrun does."""
        while any(rank.is_alive() for rank in self.ranks):
            wait([rank.sentinel for rank in self.ranks if rank.is_alive()])
            if any(rank.exitcode for rank in self.ranks):
                self.stop()
        return [rank.exitcode for rank in self.ranks]

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait while the command works."""
        while not reached():
            assert self.ranks[0].is_alive(), self.printed
            time.sleep(0.002)

    def kill(self, rank: int) -> None:
        """SIGKILL to one rank, and what torchrun then does to the others."""
        self.ranks[rank].kill()
        self.ranks[rank].join()
        self.stop()

    def stop(self) -> None:
        """SIGTERM to every rank that runs; it must do."""
        for process in self.ranks:
            if process.is_alive():
                process.terminate()
        deadline = time.monotonic() + GRACE_S
        for process in self.ranks:
            process.join(max(deadline - time.monotonic(), 0))
        running = [rank for rank, process in enumerate(self.ranks) if process.is_alive()]
        for rank in running:
            self.ranks[rank].kill()
            self.ranks[rank].join()
        assert not running, f"SIGTERM did not end ranks {running}: {self.printed}"


def start(folder: Path, words: Sequence[str], *, ranks: int = 1, fault: Fault | None = None) -> Job:
    """Start ``train …`` or a verb in ``folder``; ``fault`` befalls the last rank."""
    (port,) = free_ports(1)
    logs = [folder / f"log-{port}-{rank}.txt" for rank in range(ranks)]
    processes = []
    for rank, log in enumerate(logs):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        befalls = fault if rank == ranks - 1 else None
        process = _FORK.Process(target=run, args=(words, folder, environment, log, befalls))
        process.start()
        processes.append(process)
    return Job(processes, logs)


def finish(folder: Path, words: Sequence[str], *, ranks: int = 1) -> Job:
    """Run to the end; every rank must return 0."""
    job = start(folder, words, ranks=ranks)
    assert job.end() == [0] * ranks, job.printed
    return job
