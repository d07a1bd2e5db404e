"""Running jobs: several at a time, each after those that it needs; what is done is not repeated."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from specforge_dstill.ablations.job import Job
from specforge_dstill.ablations.jobs import LOG
from specforge_dstill.ablations.notes import Note, begin, read_notes, write_note
from specforge_dstill.errors import UserError
from specforge_dstill.files import writing

#: A process that was asked to end has so long (torchrun gives its ranks 30 seconds).
_GRACE_S = 45.0
_POLL_S = 0.1
_LOG_TAIL = 64 * 1024


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    slot: int
    begun: float
    note: Note


@dataclass
class Schedule:
    """Jobs, and how far they are.

    Attributes:
        slots: the environment of each job that runs at a time, on top of this process's own.
        locks: descriptors that jobs inherit, so that a lock is theirs, too.
        say: told of each beginning and end.
    """

    jobs: Sequence[Job]
    slots: Sequence[Mapping[str, str]]
    say: Callable[[str], None]
    locks: tuple[int, ...] = ()
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Do all that can be done. Jobs that need a failed one are left; the rest goes on.

        Raises: ``UserError`` before anything starts, where a folder holds another training.
        """
        notes = read_notes(self.jobs)
        self.done = {name for name, note in notes.items() if note.done}
        if self.done:
            self.say(f"{len(self.done)} of {len(self.jobs)} jobs are done already")
        waiting = [job for job in self.jobs if job.name not in self.done]
        free = list(range(len(self.slots)))
        running: list[_Running] = []
        with _ended_with_us(running):
            while waiting or running:
                for job in self._ready(waiting, running)[: len(free)]:
                    waiting.remove(job)
                    notes[job.name] = begin(job, notes)
                    running.append(self._start(job, free.pop(0), notes[job.name]))
                if not running:
                    break  # what waits needs something that failed
                self._reap(running, free)

    def _ready(self, waiting: Sequence[Job], running: Sequence[_Running]) -> list[Job]:
        """Those that can be started together now."""
        taken = {one.job.in_turn for one in running}
        ready = []
        for job in waiting:
            if self.done.issuperset(job.needs) and not (job.in_turn and job.in_turn in taken):
                ready.append(job)
                taken.add(job.in_turn)
        return ready

    def _start(self, job: Job, slot: int, note: Note) -> _Running:
        write_note(job, note)
        words = job.words()
        path = job.folder / LOG
        with writing(path), path.open("ab") as log:
            log.write(f"$ {' '.join(words)}\n".encode())
            log.flush()
            process = self._process(words, slot, log)
        self.say(f"{job.name} … ({path})")
        return _Running(job, process, slot, time.monotonic(), note)

    def _process(self, words: Sequence[str], slot: int, log: BinaryIO) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                words,
                env={**os.environ, **self.slots[slot], "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=self.locks,
            )
        except OSError as error:
            raise UserError(
                f"cannot start {words[0]!r}: {error.strerror}; mend launcher: in the grid file"
            ) from error

    def _reap(self, running: list[_Running], free: list[int]) -> None:
        """Wait until a job ends."""
        while not (ended := [one for one in running if one.process.poll() is not None]):
            time.sleep(_POLL_S)
        for one in ended:
            running.remove(one)
            free.append(one.slot)
            failure = _failure(one.job, one.process.returncode)
            write_note(one.job, replace(one.note, done=failure is None))
            if failure is None:
                self.done.add(one.job.name)
                took = time.monotonic() - one.begun
                share = f"{len(self.done)} of {len(self.jobs)}"
                self.say(f"{one.job.name} done in {took:.0f} s ({share})")
            else:
                self.failed[one.job.name] = failure
                self.say(f"{one.job.name} failed: {failure}")


@contextmanager
def _ended_with_us(running: list[_Running]) -> Iterator[None]:
    """No job outlives the command."""
    try:
        yield
    finally:
        for one in running:
            one.process.terminate()
        deadline = time.monotonic() + _GRACE_S
        for one in running:
            try:
                one.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()


def _failure(job: Job, status: int) -> str | None:
    """Why a job that ended is not done; None for one that is."""
    if status:
        return _reason(job, status)
    if job.lacks_checkpoint:
        return (
            f"it ended without its checkpoint {job.latest}; a launcher: must wait until the "
            f"training ends (log: {job.folder / LOG})"
        )
    return None


def _reason(job: Job, status: int) -> str:
    """The job's own line if it has one (torchrun's report stands after it), else its status."""
    path = job.folder / LOG
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _LOG_TAIL))
        lines = log.read().decode(errors="replace").splitlines()
    # Of this start alone.
    begun = max((i for i, line in enumerate(lines) if line.startswith("$ ")), default=0)
    told = [line for line in lines[begun:] if "error: " in line and line.startswith("specforge")]
    last = told[0].partition("error: ")[2] if told else f"status {status}"
    return f"{last} (log: {path})"
