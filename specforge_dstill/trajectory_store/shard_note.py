"""What is known of a shard that lies elsewhere, without fetching it: a small file beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specforge_dstill.files import json_bytes
from specforge_dstill.trajectory_store.manifest import ShardEntry

_SUFFIX = ".json"


@dataclass(frozen=True)
class ShardNote:
    """A shard's line for the manifest, and what made it. A shard without its note is not whole.

    Attributes:
        plan_digest: of the plan that made it.
        versions: of the libraries that wrote it.
    """

    entry: ShardEntry
    plan_digest: str
    versions: Mapping[str, str]

    def to_bytes(self) -> bytes:
        return json_bytes(asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes) -> ShardNote | None:
        """The inverse of :meth:`to_bytes`; None for anything else."""
        try:
            document: dict[str, Any] = json.loads(content)
            note = cls(**{**document, "entry": ShardEntry(**document["entry"])})
        except (ValueError, KeyError, TypeError):
            return None
        return note if note.to_bytes() == content else None


def note_name(shard: str) -> str:
    """The file name of a shard's note."""
    return shard + _SUFFIX
