"""The bench's table: what was measured, against the bound that it should keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from measure import MEMORY_ANCHORS, Times
from shapes import DEFAULT_SHAPE, Shape

# Dense bfloat16 operations a second, from NVIDIA's data sheets.
PEAK_RATES = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
# What the names of the timed runs stand for.
LEGEND = {
    "product": "product: the large matrix product that gives the machine's rate",
    "peer I": "SpecForge's step on Stage I's anchors",
    "peer II": "SpecForge's step on the trajectories' anchors",
    "teacher": "Stage I step",
    "teacher x4": "Stage I step on four times the anchors",
    "student": "Stage II step",
    "plain": "K plain passes with full logits, log-softmax and top-k",
    "collect": "collection",
}
STEPS = {"teacher": "Stage I step", "student": "Stage II step", "collect": "collection"}


@dataclass(frozen=True)
class Row:
    """One line: a number and the bound it should not pass."""

    what: str
    value: float
    bound: float


def rows_of(times: Times, shape: Shape) -> list[Row]:
    """The lines of the table."""
    values = {name: list_[0] for name, list_ in times.values.items()}
    anchors = shape.anchors
    return [
        Row("Stage I step ÷ SpecForge's step", times.ratio("teacher", "peer I"), 0.60),
        Row("Stage II step, look-up included ÷ same", times.ratio("student", "peer II"), 0.80),
        Row(
            f"collection ÷ {shape.steps} plain passes with top-k",
            times.ratio("collect", "plain"),
            0.55,
        ),
        *(
            Row(f"{what} ÷ its floor", times.ratio(name, f"{name} floor"), 1.5)
            for name, what in STEPS.items()
        ),
        Row(
            f"memory of the loss ÷ full logits, {MEMORY_ANCHORS} anchors",
            values["ours loss bytes"] / values["plain loss bytes"],
            0.25,
        ),
        Row(
            f"time at {4 * anchors} anchors ÷ 4 × time at {anchors}",
            times.ratio("teacher x4", "teacher", of=4),
            1.15,
        ),
        Row(f"bytes a block, B={shape.block_size}, k={shape.top_k}", values["bytes a block"], 1600),
        Row("loader wait ÷ Stage II step", values["wait share"], 0.02),
    ]


def table(rows: Sequence[Row], times: Times, shape: Shape, machine: dict[str, Any]) -> str:
    """Markdown. The bounds are for the default shape and are left out elsewhere."""
    bounded = shape.name == DEFAULT_SHAPE
    lines = [
        f"{shape.name}: {', '.join(f'{name} {value}' for name, value in machine.items())}",
        "",
        "| what | measured | bound |",
        "| --- | --- | --- |",
    ]
    for row in rows:
        missed = " (missed)" if bounded and row.value > row.bound else ""
        bound = f"≤ {row.bound:g}" if bounded else ""
        lines.append(f"| {row.what} | {row.value:.4g}{missed} | {bound} |")
    lines += ["", "| median seconds | of |", "| --- | --- |"]
    lines += [f"| {times.median(name):.4g} | {LEGEND.get(name, name)} |" for name in times.seconds]
    if shape.device == "cuda":
        lines += ["", *device_lines(times, shape, device=torch.cuda.get_device_name())]
    return "\n".join(lines)


def device_lines(times: Times, shape: Shape, *, device: str) -> list[str]:
    """Throughput, memory and utilisation of the three steps on a GPU of that name."""
    peak = next((rate for key, rate in PEAK_RATES.items() if key in device), None)
    lines = [
        "| step | tokens a second | peak GB | model FLOP utilisation |",
        "| --- | --- | --- | --- |",
    ]
    for step, what in STEPS.items():
        seconds = times.median(step)
        used = sum(times.values[f"{step} operations"]) / len(times.values[f"{step} operations"])
        share = f"{used / seconds / peak:.1%}" if peak else "—"
        memory = max(times.values[f"{step} bytes"]) / 1e9
        tokens = shape.batch * shape.sequence / seconds
        lines.append(f"| {what} | {tokens:.0f} | {memory:.1f} | {share} |")
    return lines
