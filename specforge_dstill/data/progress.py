"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

_SLOW = 0.1  # fewer a second are told the other way round


class Progress:
    """Counts ``total`` things of one ``unit`` ("sample"); ``done`` were there before this run.

    Used as a context manager. The plain lines carry count, rate and time left. With
    ``enabled=False`` (the ranks that keep quiet) nothing is shown.
    """

    def __init__(
        self,
        what: str,
        *,
        total: int,
        unit: str = "sample",
        done: int = 0,
        enabled: bool = True,
        every: float = 10.0,
        stream: TextIO | None = None,
    ) -> None:
        self._total, self._what, self._unit, self._every = total, what, f"{unit}s", every
        self._done = self._before = done
        self._stream, self._enabled = stream or sys.stderr, enabled
        self._start = self._last = time.monotonic()
        self._bar = self._make_bar() if enabled and self._stream.isatty() else None

    def _make_bar(self):  # type: ignore[no-untyped-def]  # tqdm brings no types
        from tqdm import tqdm

        return tqdm(
            total=self._total,
            initial=self._before,
            desc=self._what,
            unit=f" {self._unit}",
            file=self._stream,
        )

    def advance(self, count: int = 1) -> None:
        """Count ``count`` more."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif self._enabled and time.monotonic() - self._last >= self._every:
            self._print()

    def _print(self) -> None:
        self._last = time.monotonic()
        rate = (self._done - self._before) / max(self._last - self._start, 1e-9)
        pace = f"{1 / rate:.0f} s each" if 0 < rate < _SLOW else f"{rate:.2f} a second"
        line = f"{self._what}: {self._done}/{self._total} {self._unit}, {pace}"
        if rate > 0 and self._done < self._total:
            line += f", {_span((self._total - self._done) / rate)} left"
        print(line, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._enabled and kind is None and self._done > self._before:
            self._print()


def _span(seconds: float) -> str:
    whole = int(seconds + 0.5)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
