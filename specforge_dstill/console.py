"""What every command shares: one-line errors, exit statuses, an argument parser that uses them."""

from __future__ import annotations

import argparse
import errno
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from specforge_dstill.errors import UserError
from specforge_dstill.stopping import Stopped, unwinding_on_signals

DONE, FAILED, USER_MISTAKE = 0, 1, 2
_INTERRUPTED = 130
_PACKAGE = Path(__file__).parent
_NO_READER = 128 + signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 1
# Ranks mostly share a mistake. The first of a node names it; torchrun then stops the others, well
# within this time, and only a rank that is alone with its mistake gets to speak.
_OTHER_RANKS_WAIT_S = 3.0


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are UserErrors."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def say(message: str) -> None:
    """One line on stderr, from the first rank of a node only."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"specforge-dstill: {message}", file=sys.stderr, flush=True)


class ReportedError(Exception):
    """An error that :func:`report` has printed already, and the status to exit with."""

    def __init__(self, status: int = USER_MISTAKE) -> None:
        super().__init__(status)
        self.status = status


def report(error: UserError, *, bystander: bool = False) -> None:
    """A mistake as one line on stderr; ranks that share it leave that to the first of a node.

    Args:
        bystander: this rank fails for another's sake, which is given the time to tell why.
    """
    if bystander:
        time.sleep(2 * _OTHER_RANKS_WAIT_S)
    elif os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(_OTHER_RANKS_WAIT_S)
    text = " ".join(str(error).split())
    print(f"specforge-dstill: error: {text}", file=sys.stderr, flush=True)
    _tell_torchrun(text)


def _tell_torchrun(text: str) -> None:
    """Have torchrun end with the mistake, too, which its own traceback pushes off the screen."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with suppress(OSError):
            told = {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}
            Path(path).write_text(json.dumps({"message": told}), encoding="utf-8")


def exit_status(command: Callable[[], int]) -> int:
    """Run a command; a UserError becomes one line on stderr and status 2.

    So does a signal that ends it, with status 128 + signal. When the reader of its output has
    gone (``| head``) it ends without a word, as others do; a pipe of other things is none of that.
    """
    try:
        with unwinding_on_signals(), _one_line_warnings():
            status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        _drop_output()
        return _NO_READER
    except UserError as error:
        report(error)
        return USER_MISTAKE
    except ReportedError as reported:
        return reported.status
    except Stopped as stopped:
        say(str(stopped))
        return stopped.exit_status
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _drop_output()
        report(UserError("no space left where the output goes"))
        return USER_MISTAKE
    except KeyboardInterrupt:
        return _INTERRUPTED


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Warnings that our code gives look like its errors, without a place in the source."""
    before = warnings.formatwarning

    def as_line(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if not Path(filename).is_relative_to(_PACKAGE):
            return before(message, category, filename, lineno, line)
        return f"specforge-dstill: warning: {' '.join(str(message).split())}\n"

    warnings.formatwarning = as_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def _reader_is_gone() -> bool:
    """Whether nobody reads this command's output any more."""
    try:
        sys.stdout.flush()
        output = sys.stdout.fileno()
    except BrokenPipeError:
        return True
    except (OSError, ValueError):  # closed, or no file
        return False
    if not hasattr(select, "poll"):
        return False
    # What is printed unbuffered leaves nothing to flush: the pipe itself is asked.
    poll = select.poll()
    poll.register(output, 0)
    return any(told & select.POLLERR for _, told in poll.poll(0))


def _drop_output() -> None:
    """Send the rest nowhere: Python flushes once more on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
