"""Shared fixtures: the tiny target, cache and draft config, written once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiny


@pytest.fixture(scope="session")
def tiny_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``target/``, ``cache/`` (12 samples) and ``draft.json``; do not change it."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny.save_target(folder / "target")
    tiny.save_features(folder / "cache", samples=12)
    tiny.write_json(folder / "draft.json", tiny.draft_config())
    return folder
