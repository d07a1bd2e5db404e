"""Running both sides in turn, and what follows from the times."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from floor import Operations, collection_operations, step_operations
from loss_memory import measured
from ours import Ours
from shapes import Shape

from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.trajectory_store import TrajectoryStore

MEMORY_ANCHORS = 256
FLASH = "collect, flash-attn in two calls"


@dataclass
class Times:
    """Seconds of every run by name, and other numbers by name; a list index is a round."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def median(self, name: str) -> float:
        return median(self.seconds[name])

    def ratio(self, name: str, other: str, *, of: float = 1.0) -> float:
        """Median over the rounds of ``name / (of * other)``: both sides saw the same machine."""
        pairs = zip(self.seconds[name], self.seconds[other], strict=True)
        return median(one / (of * two) for one, two in pairs)


def run_rounds(ours: Ours, *, repeats: int, show: Callable[[str], None]) -> Times:
    """Both sides in turn, ``repeats`` times, after one round that is not counted."""
    peer, shape, times = ours.peer(), ours.shape, Times()
    product = _product(shape, ours.device)
    flash = _flash_drafter(ours)

    def timed(name: str, work: Callable[[], Any]) -> Any:
        ours.drafter.zero_grad()
        peer.zero_grad()
        if ours.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        ours.wait()
        start = time.perf_counter()
        result = work()
        ours.wait()
        times.seconds[name].append(time.perf_counter() - start)
        if ours.device.type == "cuda":
            times.values[f"{name} bytes"].append(torch.cuda.max_memory_allocated())
        return result

    def peer_step(name: str, anchors: torch.Tensor) -> None:
        peer.give(anchors)
        timed(name, lambda: peer.step(ours.data))

    store = TrajectoryStore.open(ours.collect("store"))
    for visit in range(1 + repeats):
        if visit == 1:
            times = Times()
        show(f"round {visit} of {repeats}" if visit else "warming up")
        timed("product", product)
        peer_step("peer I", ours.teacher_anchors(visit))
        step = timed("teacher", lambda visit=visit: ours.teacher_step(visit))
        _keep_floor(times, "teacher", shape, step_operations(shape, step.anchors, rows=step.rows))
        timed("teacher x4", lambda visit=visit: ours.teacher_step(visit, anchors=4 * shape.anchors))
        peer_step("peer II", ours.recorded_anchors())
        step = timed("student", lambda visit=visit: ours.student_step(visit, store))
        _keep_floor(times, "student", shape, step_operations(shape, step.anchors, rows=step.rows))
        timed("plain", lambda: peer.plain_passes(ours.data, steps=shape.steps, top_k=shape.top_k))
        timed("collect", lambda: ours.collect("again"))
        collected = collection_operations(
            shape, ours.recorded_anchors(), rows=ours.collected_rows()
        )
        _keep_floor(times, "collect", shape, collected)
        if flash is not None:
            timed(FLASH, lambda: ours.collect("flash", drafter=flash))
    show("loader, memory of the loss")
    manifest = store.manifest
    times.values["bytes a block"] = [manifest.total_bytes / manifest.total_blocks]
    times.values["wait share"] = [ours.wait_share(store)]
    for side in ("ours", "plain"):
        times.values[f"{side} loss bytes"] = [measured(side, shape, MEMORY_ANCHORS)]
    return times


def _flash_drafter(ours: Ours) -> BlockDrafter | None:
    """The same drafter on flash-attn: whether it rolls out faster is what the bench is to tell."""
    if ours.device.type != "cuda" or find_spec("flash_attn") is None:
        return None
    return ours.attending("fa", weights=ours.drafter.draft_model.state_dict())


def _product(shape: Shape, device: torch.device) -> Callable[[], Any]:
    """The large product whose rate is the machine's."""
    size = (shape.product, shape.product)
    left, right = torch.randn(2, *size, device=device).to(getattr(torch, shape.dtype))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def _keep_floor(times: Times, name: str, shape: Shape, operations: Operations) -> None:
    """Note a run's operations, and the time they take at the rate measured in its round."""
    seconds = times.seconds["product"][-1] * operations.total / (2 * shape.product**3)
    times.seconds[f"{name} floor"].append(seconds)
    times.values[f"{name} operations"].append(operations.total)
