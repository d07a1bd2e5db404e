"""Randomness by a seed."""

from __future__ import annotations

import torch


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
