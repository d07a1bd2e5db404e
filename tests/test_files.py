"""Files that are complete or absent, whatever the file system does."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from specforge_dstill import files
from specforge_dstill.errors import UserError


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in (b"old", b"new and longer", b""):
        files.write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_disk_that_refuses_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "a.json"
    files.write_atomically(path, b"old")

    def full(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, "whatever\nover lines")

    monkeypatch.setattr(os if failing == "fsync" else Path, failing, full)
    with pytest.raises(UserError) as caught:
        files.write_atomically(path, b"new")
    assert str(caught.value) == (
        f"{path}: cannot be written: No space left on device; what was finished is kept, make "
        "room or choose another folder and run the same command again"
    )
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_leaves_the_old_file_and_a_temporary_one_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    files.write_atomically(path, b"old")
    monkeypatch.setattr(files, "remove_quietly", lambda path: None)  # as if never reached

    def killed(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    (left,) = files.temporary_files(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([path, left])


@pytest.mark.parametrize("hard_links", [True, False])
def test_the_first_one_creates_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    def unsupported(*_args: Any) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    if not hard_links:
        monkeypatch.setattr(os, "link", unsupported)
    path = tmp_path / "a.json"
    files.create_once(path, b"first")
    files.create_once(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    with pytest.raises(UserError) as caught, files.reading(path):
        path.read_bytes()
    assert str(caught.value) == f"{path}: cannot be read: No such file or directory"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/a/b: cannot be written: Not a directory; what"):
        files.make_folder(tmp_path / "file" / "a" / "b")
