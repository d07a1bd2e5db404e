"""The edge to SpecForge: three training modes, and the drafter that they share."""

from __future__ import annotations

from specforge_dstill.modes.collect import run_collect
from specforge_dstill.modes.registration import check_streaming, registry

__all__ = ["check_streaming", "registry", "run_collect"]
