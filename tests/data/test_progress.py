from __future__ import annotations

import io

import pytest

from specforge_dstill.data import progress as module
from specforge_dstill.data.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 104.0, 110.0, 110.0, 120.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Progress("capture", total=7210, done=10, stream=stream) as progress:
        progress.advance()
        progress.advance(9)
    assert stream.getvalue().splitlines() == [
        "capture: 20/7210 samples, 1.00 a second, 1:59:50 left",
        "capture: 20/7210 samples, 0.50 a second, 3:59:40 left",
    ]


def test_what_takes_long_is_told_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 300.0, 300.0, 600.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Progress("decode", total=2, unit="turn", stream=stream) as progress:
        progress.advance()
    assert stream.getvalue().splitlines() == [
        "decode: 1/2 turns, 300 s each, 5:00 left",
        "decode: 1/2 turns, 600 s each, 10:00 left",
    ]


def test_a_bar_on_a_terminal() -> None:
    stream = Terminal()
    with Progress("collect", total=3, unit="block", stream=stream) as progress:
        progress.advance(3)
    assert "collect: 100%" in stream.getvalue()
    assert "3/3" in stream.getvalue()


def test_quiet_ranks_print_nothing() -> None:
    for stream in (io.StringIO(), Terminal()):
        with Progress("x", total=1, enabled=False, every=0.0, stream=stream) as progress:
            progress.advance()
        assert stream.getvalue() == ""


def test_nothing_new_says_nothing() -> None:
    stream = io.StringIO()
    with Progress("x", total=5, done=5, stream=stream):
        pass
    assert stream.getvalue() == ""
