"""The hash that ties a feature file, a trajectory and an answer to the same tokens."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

HASH_DIGITS = 32


def token_hash(input_ids: Any) -> str:
    """First 32 hex digits of the SHA-256 of the ids as little-endian int64.

    ``input_ids`` is a list, array or CPU tensor of shape [S].
    """
    ids = np.ascontiguousarray(np.asarray(input_ids), dtype="<i8")
    return hashlib.sha256(ids.tobytes()).hexdigest()[:HASH_DIGITS]
