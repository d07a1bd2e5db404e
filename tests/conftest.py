"""Shared fixtures: the tiny target, cache and draft config, written once a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from tests import tiny

if TYPE_CHECKING:
    from tests.trained import Case

# Small matrices on a few cores: more threads only get in each other's way. The variable is for
# the processes that tests start.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Names the folder of the engines' environments.
ENGINES = "SPECFORGE_DSTILL_ENGINES"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` or ``serving`` are skipped where there is none."""
    missing = {}
    if not torch.cuda.is_available():
        missing["gpu"] = "no GPU here"
    if ENGINES not in os.environ:
        missing["serving"] = "run by make test-serving"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def memory_files() -> Iterator[None]:
    """What a test leaves at ``memory://``, which a whole process shares, is removed after it."""
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(scope="session")
def tiny_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``target/``, ``cache/`` (12 samples) and ``draft.json``; do not change it."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny.save_target(folder / "target")
    tiny.save_features(folder / "cache", samples=12)
    tiny.write_json(folder / "draft.json", tiny.draft_config())
    return folder


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A tiny target, a drafter trained on its answers, and the files around them."""
    from tests.trained import make_case

    return make_case(tmp_path_factory.mktemp("case"))
