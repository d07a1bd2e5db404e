"""Times tell whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specforge_dstill import device_names
from specforge_dstill.device_names import device_name


def test_a_gpu_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"another at {device}")
    assert device_name("cuda:1") == "another at cuda:1"


def test_a_cpu_is_told_by_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Some CPU\n")
    monkeypatch.setattr(device_names, "_CPUS", listed)
    assert device_name("cpu") == "Some CPU @ 2 GHz"


def test_a_cpu_without_a_model_is_told_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_names, "_CPUS", tmp_path / "none")
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert device_name("cpu") == "aarch64"
    assert device_name("meta") == ""
