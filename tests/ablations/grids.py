"""A small grid over the tiny inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from specforge_dstill.ablations.grid import Grid, read_grid

VARIANTS: dict[str, Any] = {
    "student": {"from": "teacher"},
    "student-ce": {"from": "teacher", "dstill.student.alpha": 0},
    "student-k2": {"from": "teacher", "dstill.steps": 2},
    "teacher": {"mode": "dstill_teacher"},
    "dflash": {"mode": "dflash"},
    "dflash-more": {"mode": "dflash", "from": "dflash", "passes": [1], "training.num_epochs": 1},
}


def write_grid(folder: Path, **changes: Any) -> Path:
    """A file with everything in it but what ``changes`` replaces; None leaves a key out."""
    document = {
        "seeds": [0, 1],
        "evaluate": {"prompts": {"one": "one.jsonl"}, "max_new_tokens": 24},
        "variants": VARIANTS,
        **changes,
    }
    path = folder / "grid.yaml"
    path.write_text(
        yaml.safe_dump({k: v for k, v in document.items() if v is not None}, sort_keys=False)
    )
    return path


def grid(folder: Path, **changes: Any) -> Grid:
    return read_grid(write_grid(folder, **changes))
