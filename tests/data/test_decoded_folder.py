"""Times in a folder are of one machine and of one set of libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specforge_dstill.data.decoded_folder import SETTINGS, DecodedFolder
from specforge_dstill.errors import UserError

MADE: dict[str, Any] = {
    "target": "here",
    "device": "cpu",
    "device_name": "A",
    "versions": {"torch": "2.12"},
}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"versions": {"torch": "2.13"}}, "versions was {'torch': '2.12'} and is now {'torch': "),
        ({"device_name": "B"}, "device_name was 'A' and is now 'B'"),
    ],
)
def test_times_of_other_libraries_or_processors_are_refused(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    DecodedFolder(tmp_path, MADE).put([1, 2], {"plain": 1})
    with pytest.raises(UserError) as refused:
        DecodedFolder(tmp_path, {**MADE, **changes})
    assert told in str(refused.value)
    assert "choose another folder with --output" in str(refused.value)
    assert DecodedFolder(tmp_path, {**MADE, "target": "there"}).get([1, 2]) == {"plain": 1}


def test_a_folder_that_does_not_say_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).write_text(json.dumps({"target": "here", "device": "cpu"}))
    DecodedFolder(tmp_path, MADE)
