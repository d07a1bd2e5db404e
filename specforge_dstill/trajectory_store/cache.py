"""Where this machine keeps pieces of stores that lie elsewhere: copies, and shards on their way."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "SPECFORGE_DSTILL_CACHE"


def cache_folder() -> Path:
    """``$SPECFORGE_DSTILL_CACHE``, else ``specforge_dstill`` in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specforge_dstill"


def copies_folder(manifest_digest: str) -> Path:
    """For the shards of one store, read from elsewhere.

    The manifest names every shard's checksum, so that its own digest names the content.
    """
    return cache_folder() / "stores" / manifest_digest[:32]


def staging_folder(plan_digest: str) -> Path:
    """For the shards of one store that are written here and not yet in place."""
    return cache_folder() / "staging" / plan_digest[:32]
