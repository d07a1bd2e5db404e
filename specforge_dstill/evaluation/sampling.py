"""A distribution over the next token as transformers' ``generate`` makes it from logits.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.maths.drawing import draw


@dataclass(frozen=True)
class Sampling:
    """Temperature, top-k and top-p, in ``generate``'s order and by its own code.

    Attributes:
        temperature: 0 is greedy: the most probable token, and top_k and top_p say nothing.
        top_k: only the k most probable tokens; 0 for all.
        top_p: only the most probable tokens that together hold ``top_p``; 1 for all.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution that is sampled from, [R, V] -> [R, V] float32; not for greedy."""
        scores = logits.float()
        for warp in self._warpers:
            scores = warp(None, scores)
        return scores.softmax(dim=-1)

    def tokens(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """One token a row, [R, V] -> [R] int64.

        Args:
            generator: not touched when greedy; else ``ValueError`` without one.
        """
        if self.is_greedy:
            return logits.argmax(dim=-1)
        return draw(self.probabilities(logits), generator=generator)

    @cached_property
    def _warpers(self) -> tuple[Any, ...]:
        """Those that change anything."""
        from transformers.generation import (
            TemperatureLogitsWarper,
            TopKLogitsWarper,
            TopPLogitsWarper,
        )

        return (
            *([TemperatureLogitsWarper(self.temperature)] if self.temperature != 1 else []),
            *([TopKLogitsWarper(self.top_k)] if self.top_k else []),
            *([TopPLogitsWarper(self.top_p)] if self.top_p < 1 else []),
        )
