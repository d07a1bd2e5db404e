"""The engines' environments, and drafters trained for a small target that all of them run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from specforge_dstill import cli
from tests.conftest import ENGINES
from tests.example_modules import importing
from tests.export.checkpoints import FULL, SLIDING, WINDOW
from tests.trained import Case, make_case

EXAMPLE = Path(__file__).parents[2] / "examples" / "serving"
KINDS = {"full": (FULL, FULL), "sliding": (SLIDING, SLIDING), "mixed": (SLIDING, FULL)}


@pytest.fixture(scope="session")
def engines() -> Path:
    """The environment with vLLM and dflash; in it, by version, SGLang's sources."""
    return Path(os.environ[ENGINES])


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """By kind of drafter, a case with ``exported/`` and, where that can be, ``speculators/``.

    Its heads are 32 wide, for vLLM has no smaller ones on a CPU, and its windows hold a block.
    """
    made = {}
    for kind, layer_types in KINDS.items():
        folder = tmp_path_factory.mktemp(kind)
        made[kind] = make_case(folder, head_dim=32, layer_types=layer_types, window=WINDOW)
        export(made[kind], "native", "exported")
        if kind != "mixed":
            export(made[kind], "speculators", "speculators")
    return made


def export(case: Case, layout: str, output: str) -> None:
    words = [
        f"--config={case.run_file}",
        f"--checkpoint={case.folder / 'trained'}",
        f"--to={layout}",
        f"--output-dir={case.folder / output}",
    ]
    assert cli.main(["export", *words]) == 0


@pytest.fixture
def example() -> Iterator[ModuleType]:
    """The example's module."""
    with importing(EXAMPLE) as load:
        yield load("run")
