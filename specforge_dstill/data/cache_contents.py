"""What is in a feature cache: read from its files, with or without a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specforge_dstill.data.feature_files import HIDDEN, read_tensors
from specforge_dstill.errors import UserError
from specforge_dstill.maths.anchors import valid_anchors


@dataclass
class CacheContents:
    """Counts over the files of a cache, taken in one by one.

    Attributes:
        files, bytes: looked at, and their sizes on disk.
        tokens, scored, anchors: of all samples; an anchor is where a block can start.
        shortest, longest: tokens of a sample; None before the first.
        lengths: samples by length, under the smallest power of two that is not shorter.
        layouts: files by what they hold: "bfloat16 [S, 14400]".
        faulty: what is wrong with those that could not be read.
    """

    files: int = 0
    bytes: int = 0
    tokens: int = 0
    scored: int = 0
    anchors: int = 0
    shortest: int | None = None
    longest: int | None = None
    lengths: Counter[int] = field(default_factory=Counter)
    layouts: Counter[str] = field(default_factory=Counter)
    faulty: list[str] = field(default_factory=list)

    def add(self, path: Path) -> None:
        """Count one feature file. Its ids and mask are read, its states are not."""
        self.files += 1
        try:
            self.bytes += path.stat().st_size
            found = read_tensors(path)
            mask = found["loss_mask"].flatten()
            size = len(found["input_ids"].flatten())
        except UserError as error:
            self.faulty.append(str(error))
            return
        except KeyError as error:
            self.faulty.append(f"{path}: lacks {error}")
            return
        except OSError as error:
            self.faulty.append(f"{path}: {error.strerror}")
            return
        self.tokens += size
        self.scored += int((mask > 0).sum())
        self.anchors += len(valid_anchors(mask))
        self.shortest = size if self.shortest is None else min(self.shortest, size)
        self.longest = size if self.longest is None else max(self.longest, size)
        self.lengths[1 << max(size - 1, 0).bit_length()] += 1
        self.layouts[_layout(found)] += 1

    @property
    def readable(self) -> int:
        return self.files - len(self.faulty)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            **{name: getattr(self, name) for name in ("files", "bytes", "tokens", "scored")},
            **{name: getattr(self, name) for name in ("anchors", "shortest", "longest")},
            "lengths_up_to": {str(edge): self.lengths[edge] for edge in sorted(self.lengths)},
            "layouts": dict(self.layouts),
            "faulty": self.faulty,
        }


def read_contents(
    paths: list[Path], *, update: Callable[[int], None] = lambda count: None
) -> CacheContents:
    """Count over feature files, one in memory at a time."""
    found = CacheContents()
    for path in paths:
        found.add(path)
        update(1)
    return found


def _layout(found: dict[str, Any]) -> str:
    hidden = found.get(HIDDEN)
    others = sorted(set(found) - {HIDDEN, "input_ids", "loss_mask"})
    states = "no hidden_states"
    if hidden is not None:
        states = f"{str(hidden.dtype).removeprefix('torch.')}, {hidden.shape[-1]} wide"
    return " + ".join([states, *others])
