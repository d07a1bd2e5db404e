"""One block's refinement as a table: a row a pass, a column a position.

Only what was recorded is in it. Shapes: B block size, K passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from specforge_dstill.evaluation.trajectory_statistics import committed_probability
from specforge_dstill.maths.blocks import ReferenceBlocks
from specforge_dstill.maths.trajectory import Trajectory


class State(Enum):
    """What a position is after a pass."""

    ANCHOR = "anchor"
    MASKED = "masked"
    COMMITTED = "committed"  # in this very pass
    KEPT = "kept"  # committed in an earlier one


@dataclass(frozen=True)
class Slot:
    """One position after one pass.

    Attributes:
        token: committed or, where masked, what the pass held most probable; None: not recorded.
        probability: the pass's own, of that token; None where the pass recorded none.
    """

    state: State
    token: int | None = None
    probability: float | None = None


@dataclass(frozen=True)
class Refinement:
    """A block's way from the root to its endpoint.

    Attributes:
        passes: K rows of B slots, the block after each pass.
        endpoint: B tokens.
        reference: B tokens of the data, None where the sequence has none or none was given.
        scored: which of them count.
    """

    passes: tuple[tuple[Slot, ...], ...]
    endpoint: tuple[int, ...]
    reference: tuple[int | None, ...]
    scored: tuple[bool, ...]

    @property
    def block_size(self) -> int:
        return len(self.endpoint)

    @property
    def has_reference(self) -> bool:
        return any(token is not None for token in self.reference)

    @property
    def agrees(self) -> tuple[bool | None, ...]:
        """Whether the endpoint is the reference, by position; None where it does not count."""
        rows = zip(self.endpoint, self.reference, self.scored, strict=True)
        return tuple(end == ref if counts else None for end, ref, counts in rows)

    @property
    def accepted(self) -> int:
        """Tokens of the endpoint that the reference accepts, anchor included."""
        rest = self.agrees[1:]
        return 1 + next((i for i, agrees in enumerate(rest) if not agrees), len(rest))

    @property
    def shows_beliefs(self) -> bool:
        """Whether masked slots say what the pass believed (every pass was recorded)."""
        return any(c.state is State.MASKED and c.token is not None for r in self.passes for c in r)

    def to_json(self, texts: dict[int, str] | None = None) -> dict[str, object]:
        """JSON values; ``texts`` adds the tokens' own."""

        def slot(value: Slot) -> dict[str, object]:
            return {
                "state": value.state.value,
                "token": value.token,
                "probability": value.probability,
            }

        content: dict[str, object] = {
            "passes": [[slot(value) for value in row] for row in self.passes],
            "endpoint": list(self.endpoint),
            "reference": list(self.reference) if self.has_reference else None,
            "scored": list(self.scored) if self.has_reference else None,
            "accepted": self.accepted if self.has_reference else None,
        }
        if texts is not None:
            content["texts"] = {str(token): text for token, text in sorted(texts.items())}
        return content

    def tokens(self) -> set[int]:
        """Every token that appears."""
        slots = {c.token for row in self.passes for c in row if c.token is not None}
        return slots | {*self.endpoint} | {t for t in self.reference if t is not None}


def refinement(
    trajectory: Trajectory, block: int, *, steps: int, reference: ReferenceBlocks | None = None
) -> Refinement:
    """The refinement of one block.

    Args:
        trajectory: of N blocks.
        block: which of them, from 0.
        steps: K.
        reference: the data's tokens of the same N blocks.
    """
    one = trajectory[torch.tensor([block])]
    endpoint = one.endpoint[0].tolist()
    size = len(endpoint)
    values, known = committed_probability(one)
    confidence = [
        value if there else None
        for value, there in zip(values[0].tolist(), known[0].tolist(), strict=True)
    ]
    commit_pass = one.commit_pass[0].tolist()

    def slot(t: int, i: int) -> Slot:
        if i == 0:
            return Slot(State.ANCHOR, endpoint[0])
        if commit_pass[i] > t:
            return Slot(State.MASKED, *_belief(one, t, i))
        if commit_pass[i] == t:
            return Slot(State.COMMITTED, endpoint[i], confidence[i - 1])
        return Slot(State.KEPT, endpoint[i])

    tokens: list[int | None] = [None] * size
    scored = [False] * size
    if reference is not None:
        inside = reference.inside[block].tolist()
        row = reference.tokens[block].tolist()
        tokens = [token if there else None for token, there in zip(row, inside, strict=True)]
        scored = reference.scored[block].tolist()
    return Refinement(
        passes=tuple(tuple(slot(t, i) for i in range(size)) for t in range(1, steps + 1)),
        endpoint=tuple(endpoint),
        reference=tuple(tokens),
        scored=tuple(scored),
    )


def most_telling(trajectory: Trajectory, reference: ReferenceBlocks | None = None) -> int | None:
    """The first block whose refinement shows something; None when there is none.

    That is a block that was not filled from left to right and, where a reference is given, whose
    every position counts, of which some differ but less than half.
    """
    order = trajectory.commit_pass[:, 1:]
    telling = (order[:, 1:] < order[:, :-1]).any(1)
    if reference is not None:
        scored = reference.scored[:, 1:]
        differs = (trajectory.endpoint[:, 1:] != reference.tokens[:, 1:]).sum(1)
        telling &= scored.all(1) & (differs > 0) & (2 * differs < scored.shape[1])
    found: Tensor = telling.nonzero()
    return int(found[0]) if len(found) else None


def _belief(one: Trajectory, t: int, position: int) -> tuple[int | None, float | None]:
    """The most probable token of a masked position at pass ``t``, if that was recorded."""
    passes, retained = one.top_ids.shape[1], one.top_ids.shape[-1]
    if passes == 1 or retained == 0:
        return None, None
    token = int(one.top_ids[0, t - 1, position - 1, 0])
    return token, float(one.top_logp[0, t - 1, position - 1, 0].exp())
