"""The manifest: every shard of a complete store with its checksum. Written last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specforge_dstill.checksums import json_sha256
from specforge_dstill.files import json_bytes, write_atomically
from specforge_dstill.trajectory_store.identity import StorePlan

MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True)
class ShardEntry:
    """One shard: file name, rows (samples), blocks, size in bytes, SHA-256 in hex."""

    name: str
    rows: int
    blocks: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A complete store.

    Attributes:
        plan: what made it.
        shards: all of them, in order.
        versions: the distinct library versions that wrote them.
    """

    plan: StorePlan
    shards: tuple[ShardEntry, ...]
    versions: tuple[Mapping[str, str], ...]

    @property
    def total_blocks(self) -> int:
        return sum(entry.blocks for entry in self.shards)

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.shards)

    @property
    def digest(self) -> str:
        """SHA-256 of the file's content, which names that of every shard."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The file's content; ``checksum`` is over all the rest."""
        content = {
            "plan": self.plan.to_json(),
            "shards": [asdict(entry) for entry in self.shards],
            "totals": {
                "shards": len(self.shards),
                "samples": self.plan.samples,
                "blocks": self.total_blocks,
                "bytes": self.total_bytes,
            },
            "versions": [dict(versions) for versions in self.versions],
        }
        return json_bytes({**content, "checksum": json_sha256(content)})

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """The inverse of :meth:`to_bytes`. Raises: ``ValueError`` unless every byte fits."""
        document: dict[str, Any] = json.loads(content)
        try:
            manifest = cls(
                plan=StorePlan.from_json(document["plan"]),
                shards=tuple(ShardEntry(**entry) for entry in document["shards"]),
                versions=tuple(document["versions"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"its fields are not a manifest's ({error})") from error
        if manifest.to_bytes() != content:
            raise ValueError("it does not match its own checksum")
        return manifest

    def write(self, folder: Path) -> None:
        """Replace the folder's manifest. Raises: ``UserError`` from the file system."""
        write_atomically(folder / MANIFEST_FILE, self.to_bytes())
