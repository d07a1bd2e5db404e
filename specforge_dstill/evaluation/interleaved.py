"""Ways of decoding measured side by side: prompt by prompt, each in turn, after a warm-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.evaluation.decoding import Decoded
from specforge_dstill.evaluation.peak_memory import PeakMemory
from specforge_dstill.evaluation.stopwatch import Seconds

#: The paper's: four runs of up to 128 tokens before each configuration is measured.
WARM_UP_RUNS, WARM_UP_TOKENS = 4, 128

#: (prompt [S], the most new tokens, generator) -> the answer.
Way = Callable[[Tensor, int, torch.Generator], Decoded]


@dataclass(frozen=True)
class Measured:
    """An answer by one way of decoding, and the memory that it took."""

    decoded: Decoded
    peak_bytes: int

    def to_json(self) -> dict[str, Any]:
        """JSON values; :func:`measured_from_json` gives it back."""
        return {**asdict(self.decoded), "peak_bytes": self.peak_bytes}


def measured_from_json(content: Mapping[str, Any]) -> Measured:
    """What is behind :meth:`Measured.to_json`."""
    decoded = Decoded(
        tuple(content["tokens"]), tuple(content["accepted"]), Seconds(**content["seconds"])
    )
    return Measured(decoded, content["peak_bytes"])


@dataclass(frozen=True)
class Interleaved:
    """Measures several ways on the same prompts, so that what slows the machine slows all.

    Attributes:
        ways: by name.
    """

    ways: Mapping[str, Way]
    device: torch.device

    def warm_up(self, prompts: Sequence[tuple[Tensor, int]]) -> None:
        """Each way on prompts with their room, again and again if there are few."""
        for way in self.ways.values():
            for run in range(WARM_UP_RUNS if prompts else 0):
                prompt, room = prompts[run % len(prompts)]
                way(prompt, min(room, WARM_UP_TOKENS), self._generator(run))

    def measure(self, prompt: Tensor, *, max_new_tokens: int, seed: int) -> dict[str, Measured]:
        """Answer one prompt by every way. The seed also decides which of them begins."""
        peak = PeakMemory(self.device)
        names = list(self.ways)
        first = seed % len(names)
        found = {}
        for name in [*names[first:], *names[:first]]:
            peak.reset()
            decoded = self.ways[name](prompt, max_new_tokens, self._generator(seed))
            found[name] = Measured(decoded, peak.bytes())
        return {name: found[name] for name in names}

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)
