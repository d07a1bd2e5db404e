"""Commands that a signal ends: cleanup, one line, the shell's exit status."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from specforge_dstill.console import exit_status
from specforge_dstill.stopping import Stopped, ending_though_stuck, unwinding_on_signals


def test_a_signal_unwinds_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append(True)

    with pytest.raises(Stopped) as stopped, unwinding_on_signals():
        work()
    assert stopped.value.exit_status == 128 + signal.SIGTERM
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_ignored_hang_up_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with unwinding_on_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_says_so_in_one_line(
    signum: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        signal.raise_signal(signum)
        return 0

    # A shell starts its background jobs with SIGINT ignored, this test run perhaps among them.
    before = signal.signal(signum, signal.SIG_DFL)
    try:
        assert exit_status(command) == 128 + signum
    finally:
        signal.signal(signum, before)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"specforge-dstill: stopped by {signum.name}: what was finished stays")


_STUCK = """
import ctypes, sys
from specforge_dstill.console import exit_status, say
from specforge_dstill.stopping import ending_though_stuck

def command():
    with ending_though_stuck(say, grace_s=0.3):
        print("stuck", flush=True)
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):  # the second time for ever, in a library: Python's handlers wait
            ctypes.CDLL(None).pthread_mutex_lock(mutex)

sys.exit(exit_status(command))
"""


def test_a_process_that_is_stuck_in_a_library_ends_all_the_same() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        process.terminate()
        _, told = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert told.startswith("specforge-dstill: stopped by SIGTERM")


def test_leaving_in_time_is_not_stuck() -> None:
    with pytest.raises(Stopped), unwinding_on_signals(), ending_though_stuck(pytest.fail):
        signal.raise_signal(signal.SIGTERM)
    assert signal.set_wakeup_fd(-1) == -1
