"""Signals that ask a command to end: cleanup runs on the way out, and one line tells of it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

# torchrun kills a rank 30 seconds after it has asked it to end.
GRACE_S = 10.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked this process to end; raised so that cleanup runs on the way out."""

    def __init__(self, signum: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(signum).name}: what was finished stays; run the same "
            "command again to go on"
        )
        self.exit_status = 128 + signum


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Turn the first INT, TERM or HUP into `Stopped`; later ones wait until cleanup is over."""
    previous: dict[int, Any] = {}

    def unwind(signum: int, _frame: FrameType | None) -> None:
        for installed in previous:
            signal.signal(installed, signal.SIG_IGN)
        raise Stopped(signum)

    # Off the main thread Python installs no handlers: the caller's own stay in force.
    with suppress(ValueError):
        for signum in _STOP_SIGNALS:
            # Under nohup a hang-up is ignored, and stays so.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                previous[signum] = signal.signal(signum, unwind)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def ending_though_stuck(
    last_words: Callable[[str], None], *, grace_s: float | None = None
) -> Iterator[None]:
    """After a signal, leave this block within so many seconds, or the process ends.

    Python's own handlers run between two steps of the main thread, and it takes none while it
    waits, inside a library, for a rank that is dead.

    Args:
        last_words: told what :class:`Stopped` says, from another thread, before such an end.
        grace_s: :data:`GRACE_S` by default.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    left = threading.Event()

    def watch() -> None:
        while byte := os.read(reads, 1):
            if byte[0] in _STOP_SIGNALS and not left.wait(GRACE_S if grace_s is None else grace_s):
                stopped = Stopped(byte[0])
                last_words(str(stopped))
                os._exit(stopped.exit_status)

    watcher = threading.Thread(target=watch, name="stuck after a signal?", daemon=True)
    previous = None
    with suppress(ValueError):  # off the main thread signals are the caller's
        previous = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        left.set()
        if previous is not None:
            signal.set_wakeup_fd(previous)
        os.close(writes)
        watcher.join()
        os.close(reads)
