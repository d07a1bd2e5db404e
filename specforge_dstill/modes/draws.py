"""Randomness that belongs to a sample, not to a process.

Every draw of a step comes from a generator keyed by (seed, sample, step). Hence one rank and
many give the same loss on the same global batch, and a resumed run continues exactly, without
any generator state in the checkpoint. One exception: a rank whose own samples would supervise
nothing draws again (Stage I) or takes the root (Stage II), and which samples those are depends on
how the batch is cut; with the usual hundreds of blocks a rank it does not happen.
"""

from __future__ import annotations

import hashlib

import torch


def sample_generator(seed: int, sample_id: str, visit: int | str) -> torch.Generator:
    """A CPU generator that is a pure function of its arguments.

    Args:
        seed: ``training.seed``.
        sample_id: the sample's path relative to its cache.
        visit: what the draw is for: the optimizer step, or a word for draws made once.
    """
    key = f"{seed}\0{sample_id}\0{visit}".encode()
    state = int.from_bytes(hashlib.sha256(key).digest()[:8], "little")
    return torch.Generator().manual_seed(state & (2**63 - 1))
