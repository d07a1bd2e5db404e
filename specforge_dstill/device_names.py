"""Which GPU or CPU times were taken on."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

_CPUS = Path("/proc/cpuinfo")


def device_name(device: str) -> str:
    """The GPU's or the CPU's own name; "" where none is known."""
    kind = torch.device(device).type
    if kind == "cuda":
        return str(torch.cuda.get_device_name(device))
    return _cpu_name() if kind == "cpu" else ""


def _cpu_name() -> str:
    """From Linux's list of CPUs, else what the platform calls it."""
    try:
        told = _CPUS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    found = re.search(r"^model name\s*:\s*(.+)$", told, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
