"""Where the time of decoding goes, on a CPU and on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch


@dataclass(frozen=True)
class Seconds:
    """Seconds by what they were spent on.

    Attributes:
        prefill: the target reads the prompt, and its first token is picked.
        draft: the drafter's passes.
        verify: the target reads drafts and judges them; in plain decoding, its steps.
        other: all else: rolling back, bookkeeping.
    """

    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        return self.prefill + self.draft + self.verify + self.other


PHASES = tuple(field.name for field in fields(Seconds))


class Stopwatch:
    """Laps, each of one phase.

    A GPU works behind the processor's back: there, laps are events on its own stream, which cost
    no waiting and are read at the end.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._mark: Callable[[], Any] = partial(_event, device) if on_gpu else time.perf_counter
        self._marks = [self._mark()]
        self._phases: list[str] = []

    def lap(self, phase: str) -> None:
        """What has passed since the last lap was ``phase``."""
        self._marks.append(self._mark())
        self._phases.append(phase)

    def seconds(self) -> Seconds:
        """The sums, after the device has finished."""
        last = self._marks[-1]
        if not isinstance(last, float):
            last.synchronize()
        sums = dict.fromkeys(PHASES, 0.0)
        for phase, start, end in zip(self._phases, self._marks, self._marks[1:], strict=False):
            sums[phase] += _between(start, end)
        return Seconds(**sums)


def _event(device: torch.device) -> Any:
    """Of the device's own stream: the current device may be another."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _between(start: Any, end: Any) -> float:
    """Seconds between two marks."""
    if isinstance(start, float):
        return float(end - start)
    return float(start.elapsed_time(end)) / 1000
