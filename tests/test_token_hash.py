from __future__ import annotations

import hashlib
import struct

import numpy as np
import torch

from specforge_dstill.token_hash import token_hash


def test_the_hash_is_of_little_endian_int64() -> None:
    ids = [1, 2, 50_000]
    expected = hashlib.sha256(struct.pack("<3q", *ids)).hexdigest()[:32]
    assert token_hash(ids) == expected
    assert token_hash(torch.tensor(ids, dtype=torch.int32)) == expected
    assert token_hash(np.array(ids, dtype=">i8")) == expected
    assert token_hash([2, 1, 50_000]) != expected
    assert token_hash([]) == hashlib.sha256(b"").hexdigest()[:32]
