"""The list of a store's sample ids, so that they are known without its shards.

One id a line: the file's SHA-256 is the plan's ``samples_hash``, so it needs no checksum of its
own.
"""

from __future__ import annotations

from collections.abc import Sequence

SAMPLES_FILE = "samples.txt"


def samples_bytes(sample_ids: Sequence[str]) -> bytes:
    """The file's content."""
    return "".join(f"{sample_id}\n" for sample_id in sample_ids).encode()


def parse_samples(content: bytes) -> tuple[str, ...]:
    """The inverse of :func:`samples_bytes`."""
    return tuple(content.decode().split("\n")[:-1])
