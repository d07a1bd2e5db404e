"""The bench runs end to end, and its floor counts what a step really multiplies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.example_modules import importing

FOLDER = Path(__file__).parents[1] / "examples" / "bench"


@pytest.fixture
def module() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a file of the bench by name."""
    with importing(FOLDER) as load:
        yield load


def test_the_tiny_shape(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--shape", "tiny", "--repeats", "2"]
    done = subprocess.run(
        [*command, "--threads", "1"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "| Stage I step ÷ SpecForge's step |" in done.stdout
    content = json.loads((tmp_path / "runs/bench/bench-tiny.json").read_text())
    assert (tmp_path / "runs/bench/bench-tiny.md").read_text() == done.stdout
    assert len(content["rows"]) == 10
    assert all(row["value"] > 0 for row in content["rows"])
    assert {len(runs) for runs in content["seconds"].values()} == {2}


def test_a_shape_for_a_gpu_needs_one(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit):
        module("run").main(["--shape", "gpt-oss-120b"])
    assert "needs a GPU" in capsys.readouterr().err


def test_what_a_gpu_runs_as_far_as_a_cpu_can(module: Any, tmp_path: Path) -> None:
    """bfloat16 end to end, and the lines that only a GPU's table has."""
    shape = replace(module("shapes").SHAPES["tiny"], dtype="bfloat16")
    times = module("measure").run_rounds(
        module("ours").Ours(shape, tmp_path), repeats=1, show=lambda _: None
    )
    report = module("report")
    for step in report.STEPS:
        times.values[f"{step} bytes"] = [3e9]
    lines = report.device_lines(times, shape, device="NVIDIA H200")
    tokens = shape.batch * shape.sequence / times.median("student")
    used = times.values["student operations"][0] / times.median("student") / 989e12
    assert lines[3] == f"| Stage II step | {tokens:.0f} | 3.0 | {used:.1%} |"
    assert report.device_lines(times, shape, device="another")[3].endswith("| — |")


def test_the_floor_is_what_a_step_multiplies(module: Any, tmp_path: Path) -> None:
    shape = module("shapes").SHAPES["tiny"]
    ours = module("ours").Ours(shape, tmp_path)
    with FlopCounterMode(display=False) as counter:
        step = ours.teacher_step(1)
    counted = counter.get_flop_counts()["Global"]
    products = sum(
        count for operation, count in counted.items() if str(operation) in ("aten.mm", "aten.addmm")
    )
    # We project the whole context, the floor what lies before the last anchor; and attention is
    # counted apart, forward and twice backward.
    anchors = step.anchors.clone()
    anchors[:, -1] = shape.sequence
    floor = module("floor").step_operations(shape, anchors, rows=step.rows)
    assert products == floor.total - 3 * floor.attention


def test_both_sides_use_the_same_anchors(module: Any, tmp_path: Path) -> None:
    shape = module("shapes").SHAPES["tiny"]
    ours = module("ours").Ours(shape, tmp_path)
    store = module("ours").TrajectoryStore.open(ours.collect("store"))
    recorded = torch.stack([store[sample_id].anchors for sample_id in ours.sample_ids])
    assert torch.equal(recorded, ours.recorded_anchors())
    seen = []
    forward = ours.drafter.forward
    ours.drafter.forward = lambda blocks, anchors, *rest: (
        seen.append(anchors),
        forward(blocks, anchors, *rest),
    )[1]
    ours.teacher_step(3)
    ours.student_step(3, store)
    assert torch.equal(seen[0], ours.teacher_anchors(3))
    assert torch.equal(seen[1], recorded)
    peer = ours.peer()
    peer.give(recorded)
    peer.step(ours.data)
    assert not peer.given
