"""The files that enter what a capture has finished: whose it is, and a marker a shard.

``capture.json`` says what is captured and is claimed before the first feature file. A shard's
marker, ``shards/00003.jsonl``, has a line for each of its conversations, in order:

    {"sample_id", "id", "length", "token_hash", "bytes", "sha256"}   a feature file
    {"id", "dropped"}                                                left out, and why
    {"id", "damaged"}                                                taken back: to be done again

and a last line with the digest of the capture it belongs to and its own checksum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specforge_dstill.checksums import json_sha256
from specforge_dstill.damage import ASIDE
from specforge_dstill.data import jsonl
from specforge_dstill.data.sealed import read_sealed, sealed_bytes
from specforge_dstill.data.settings import differences
from specforge_dstill.errors import UserError
from specforge_dstill.files import (
    create_once,
    make_folder,
    reading,
    remove_quietly,
    temporary_files,
    write_atomically,
)
from specforge_dstill.trajectory_store.identity import IDENTITY_FILE

IDENTITY = "capture.json"
MARKERS = "shards"
#: What a first run makes before it has entered anything, or ``verify --repair`` leaves of it.
_FOLDERS = (MARKERS, "data")
#: What names the conversations that are captured.
_CONVERSATIONS = {"conversations", "conversations_hash", "conversation_count"}

Row = dict[str, Any]


class MarkerError(ValueError):
    """A marker that is not as it was written; the message says how."""


@dataclass(frozen=True)
class Marker:
    """What is entered of one shard. ``capture`` is the identity's digest."""

    capture: str
    rows: tuple[Row, ...]

    @property
    def complete(self) -> bool:
        """Whether every conversation is done with."""
        return all("damaged" not in row for row in self.rows)

    @property
    def samples(self) -> list[Row]:
        """The rows of feature files."""
        return [row for row in self.rows if "sample_id" in row]

    def without(self, problems: dict[str, str]) -> Marker:
        """With the rows of the given sample ids taken back, each for its problem."""
        rows = [
            {"id": row["id"], "damaged": problems[row["sample_id"]]}
            if row.get("sample_id") in problems
            else row
            for row in self.rows
        ]
        return Marker(self.capture, tuple(rows))

    def to_bytes(self) -> bytes:
        """The file's content."""
        last: Row = {"capture": self.capture, "rows": len(self.rows)}
        last["checksum"] = json_sha256([*self.rows, last])
        return "".join(map(jsonl.line, [*self.rows, last])).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Marker:
        """The inverse of :meth:`to_bytes`. Raises: ``MarkerError`` unless every byte fits."""
        try:
            *rows, last = map(json.loads, content.splitlines())
            marker = cls(last["capture"], tuple(rows))
            if marker.to_bytes() != content:
                raise MarkerError("it does not match its own checksum")
            return marker
        except MarkerError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MarkerError(f"it is no marker ({error})") from error


def marker_name(shard: int) -> str:
    """The marker's path within the cache: ``shards/00003.jsonl``."""
    return f"{MARKERS}/{shard:05d}.jsonl"


def marked_shards(folder: Path) -> list[int]:
    """The shards that have a marker, whole or not."""
    stems = [path.stem for path in (folder / MARKERS).glob("*.jsonl")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def read_marker(folder: Path, shard: int) -> Marker | None:
    """The marker of a shard, None when there is none. Raises: ``MarkerError`` when damaged."""
    path = folder / marker_name(shard)
    if not path.is_file():
        return None
    with reading(path):
        content = path.read_bytes()
    return Marker.from_bytes(content)


def write_marker(folder: Path, shard: int, marker: Marker) -> None:
    """Enter a shard. Raises: ``UserError`` when the file system refuses."""
    path = folder / marker_name(shard)
    make_folder(path.parent)
    write_atomically(path, marker.to_bytes())
    for leftover in temporary_files(path.parent):
        if leftover.name.startswith(f".{path.name}."):  # of a killed writer; others are at work
            remove_quietly(leftover)


def read_identity(folder: Path) -> dict[str, Any] | None:
    """What capture.json says; None without it.

    Raises: ``UserError`` when it is damaged, or another version's (``UnknownFormatError``).
    """
    path = folder / IDENTITY
    try:
        return read_sealed(path)
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}); set it aside with: specforge-dstill verify {folder} "
            "--repair, and run the same command again"
        ) from error


def claim(folder: Path, identity: dict[str, Any]) -> str:
    """Make ``folder`` that of a capture, or find that it is. Returns the identity's digest.

    Any number of processes may call this at once.

    Raises: ``UserError`` on a folder that holds anything else, or cannot be written.
    """
    digest = json_sha256(identity)
    if _is_store(folder):
        raise UserError(f"{folder}: is a trajectory store; choose another --output for features")
    if not (folder / IDENTITY).exists():
        _check_vacant(folder, digest)
        make_folder(folder)
        create_once(folder / IDENTITY, sealed_bytes(identity))
    _check_same(folder, read_identity(folder) or {}, identity)
    return digest


def _is_store(folder: Path) -> bool:
    return (folder / IDENTITY_FILE).is_file() or any(folder.glob("shard-*-of-*.arrow"))


def _check_vacant(folder: Path, digest: str) -> None:
    """Refuse a folder without capture.json that holds what this capture did not make."""
    if _entered_by(folder, digest) or all(_is_leftover(path) for path in _entries(folder)):
        return
    if (folder / IDENTITY).exists():
        return  # another rank has claimed it since
    if any(folder.glob("**/*.ckpt")):
        raise UserError(
            f"{folder}: holds features that this command did not make; choose another --output"
        )
    raise UserError(f"{folder}: is not empty and holds no capture; choose another --output")


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _is_leftover(path: Path) -> bool:
    """Whether a capture that was killed or repaired before it entered anything left this."""
    if path.name == ASIDE:
        return path.is_dir()
    if path.name in _FOLDERS:
        return not any(
            inner.is_file() and inner not in temporary_files(inner.parent)
            for inner in path.rglob("*")
        )
    return path in temporary_files(path.parent)


def _check_same(folder: Path, held: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse to go on with a capture of other settings or conversations."""
    changed = differences(held, identity)
    if not changed:
        return
    if not differences(held, identity, ignored=_CONVERSATIONS):
        raise UserError(
            f"{folder}: holds the features of other conversations "
            f"({held.get('conversation_count')} then, {identity.get('conversation_count')} now); "
            "a cache cannot be extended or changed: choose another --output"
        )
    raise UserError(
        f"{folder}: holds features made with other settings ({changed}); choose another --output"
    )


def _entered_by(folder: Path, digest: str) -> bool:
    """Whether some shard was entered by this capture: capture.json was lost or set aside."""
    return any(marker.capture == digest for marker in _readable_markers(folder))


def _readable_markers(folder: Path) -> Iterator[Marker]:
    for shard in marked_shards(folder):
        try:
            marker = read_marker(folder, shard)
        except (UserError, MarkerError):
            continue
        if marker is not None:
            yield marker
