"""What is told of a held-out cache before a drafter is scored on it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from specforge_dstill.data.held_out import compare_held_out
from tests.data.caches import make_manifest


def told(tmp_path: Path, **changes: Any) -> list[str]:
    """The warnings for a held-out cache whose manifest differs so from the training cache's."""
    for name, values in (("training", {}), ("held-out", changes)):
        (tmp_path / name).mkdir()
        make_manifest(**values).write(tmp_path / name)
    return compared(tmp_path / "training", tmp_path / "held-out")


def compared(training: Path, held_out: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compare_held_out(training, held_out)
    return [str(warning.message) for warning in caught]


def test_other_conversations_and_the_same_template_are_fine(tmp_path: Path) -> None:
    assert told(tmp_path, conversations_hash="1") == []


@pytest.mark.parametrize("change", [{"chat_template_hash": "1"}, {"template_kwargs": {"think": 1}}])
def test_another_template_is_told(tmp_path: Path, change: dict[str, Any]) -> None:
    (line,) = told(tmp_path, conversations_hash="1", **change)
    assert "another chat template" in line


def test_the_same_conversations_are_told(tmp_path: Path) -> None:
    (line,) = told(tmp_path)
    assert "from the conversations of the training cache" in line


def test_the_training_cache_itself_is_told(tmp_path: Path) -> None:
    """By whatever name; one without a manifest, too."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "link").symlink_to("cache")
    (line,) = compared(tmp_path / "cache", tmp_path / "link")
    assert "is the training cache" in line
    assert compared(tmp_path / "cache", tmp_path) == []
