"""The examples' stages: what is finished is not run again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from stages import PYTHON, Stage, StageFailed, run_stages


def python(program: str) -> list[str]:
    return [PYTHON, "-c", program]


def test_a_command_is_not_run_again_because_its_neighbour_failed(tmp_path: Path) -> None:
    """Training refuses to start over its own checkpoints, so this would block the whole stage."""
    commands = {
        "good": python("open('runs', 'a').write('x')"),
        "bad": python("import os, sys; sys.exit(not os.path.exists('mended'))"),
    }
    with pytest.raises(StageFailed, match="bad ended with status 1"):
        run_stages([Stage("both", commands)], tmp_path)
    (tmp_path / "mended").touch()
    run_stages([Stage("both", commands)], tmp_path)
    run_stages([Stage("both", commands)], tmp_path)
    assert (tmp_path / "runs").read_text() == "x"
