"""What an evaluation is given: sets of prompts, and drafters."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specforge_dstill.data.benchmarks import BENCHMARKS, benchmark_prompts
from specforge_dstill.data.conversations import Prompt, read_prompts
from specforge_dstill.errors import UserError
from specforge_dstill.modes.checkpoints import find_state_file, parameter_count, weights_hash
from specforge_dstill.modes.drafter import BlockDrafter


@dataclass(frozen=True)
class DataSet:
    """``--prompts NAME=SOURCE``, or the bare name of a benchmark: its source is None."""

    name: str
    source: str | None

    def prompts(self, *, limit: int | None) -> list[Prompt]:
        """Its prompts, of a benchmark the paper's number of them unless ``limit`` says another."""
        if self.source is None:
            return benchmark_prompts(self.name, limit=limit)
        return read_prompts(self.source, limit=limit)

    @property
    def origin(self) -> str:
        """Where they come from, for the results."""
        return self.source or BENCHMARKS[self.name].dataset


@dataclass(frozen=True)
class DrafterChoice:
    """``--drafter NAME=CHECKPOINT[:STEPS]``; without steps those of ``--steps``.

    Attributes:
        checkpoint: "" for a server's drafter, which the server has.
    """

    name: str
    checkpoint: str
    steps: tuple[int, ...] | None


@dataclass(frozen=True)
class MeasuredDraft:
    """What the results tell of a drafter.

    Attributes:
        weights: their hash.
        parameters: how many it has of its own, embeddings and head not counted.
        bytes: that these take.
    """

    weights: str
    parameters: int
    bytes: int

    @classmethod
    def of(cls, drafter: BlockDrafter) -> MeasuredDraft:
        """Of a loaded one."""
        draft = drafter.draft_model
        size = sum(one.numel() * one.element_size() for one in draft.parameters())
        return cls(weights_hash(draft), parameter_count(draft), size)


def prompts_told(
    chosen: Sequence[DataSet], prompts: Mapping[str, Sequence[Prompt]], *, limit: int | None
) -> dict[str, dict[str, Any]]:
    """What the results tell of the prompts of each data set, by its name.

    ``hash`` is the first 16 hex digits of the SHA-256 of all that is asked, names included.
    """
    return {
        one.name: {
            "source": one.origin,
            "limit": limit,
            "count": len(prompts[one.name]),
            "hash": _hash(prompts[one.name]),
        }
        for one in chosen
    }


def _hash(prompts: Sequence[Prompt]) -> str:
    told = json.dumps([asdict(prompt) for prompt in prompts], ensure_ascii=False)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def check_distinct(option: str, names: Sequence[str]) -> None:
    """Raises: ``UserError`` when a name is given twice."""
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{option}: the name {name!r} is given twice; names must differ")


def check_checkpoint(chosen: DrafterChoice) -> None:
    """Refuse a path with no checkpoint; a name on the Hub is tried when its turn comes."""
    path = Path(chosen.checkpoint.removeprefix("file://")).expanduser()
    on_the_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", chosen.checkpoint) and not path.parent.exists()
    if not path.exists() and not on_the_hub:
        raise UserError(f"--drafter {chosen.name}: no checkpoint {chosen.checkpoint}")
    try:
        find_state_file(chosen.checkpoint)
    except UserError as error:
        raise UserError(f"--drafter {chosen.name}: {error}") from None


def resolved(checkpoint: str) -> str:
    """The checkpoint's own folder, where ``-latest`` points to now."""
    state = find_state_file(checkpoint)
    return str(state.resolve().parent) if state else checkpoint
