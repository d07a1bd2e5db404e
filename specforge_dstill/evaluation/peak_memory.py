"""The most memory that a stretch of work took, all models that are loaded included."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """On a GPU what PyTorch has allocated; elsewhere the process's resident set.

    Where the system cannot forget an earlier peak (other than Linux), it counts from the start
    of the process.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        """Forget the peak so far."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5")  # man 5 proc: resets the high-water mark

    def bytes(self) -> int:
        """The peak since the last reset."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        with contextlib.suppress(OSError):
            for line in _STATUS.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used * 1024
