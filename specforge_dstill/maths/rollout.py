"""Confidence-guided refinement of blocks over K passes (Algorithm 1).

Shapes: N blocks, B block size, K passes, H hidden size, V vocabulary, R rows (masked
positions of a tile of blocks), k retained ids, T recorded passes (1 or K).

The drafter is two callables, so that this file knows nothing of attention or caches:

    hidden  [N, B] token ids      -> [N, B, H]  one pass over the blocks
    head    [R, H] hidden states  -> [R, V]     the frozen LM head; what it returns is used up
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specforge_dstill.maths.chain import Chain
from specforge_dstill.maths.drawing import draw_at
from specforge_dstill.maths.logits import ROWS_AT_ONCE, largest, log_normaliser
from specforge_dstill.maths.reveal_schedule import commit_counts
from specforge_dstill.maths.trajectory import Trajectory

Hidden = Callable[[Tensor], Tensor]
Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CommitRule:
    """How a pass picks tokens and what it records.

    Attributes:
        mask_token_id: never a legal prediction: excluded from confidence, top-k and endpoint.
            It keeps its share of the softmax, so recorded log-probabilities are full-softmax.
        top_k: retained ids a position; 0 records none.
        every_pass: record every pass at which a position is masked, not the committing one only.
        temperature: 0 commits the most probable token (the paper's choice); above 0 the token
            is sampled from ``softmax(logits / temperature)``. Confidence is the largest
            probability at temperature 1 in both cases.
    """

    mask_token_id: int
    top_k: int = 16
    every_pass: bool = False
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0, got {self.top_k}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")


def rollout(
    hidden: Hidden,
    head: Head,
    anchor_ids: Tensor,
    *,
    block_size: int,
    steps: int,
    rule: CommitRule,
    chain: Chain | None = None,
    generator: torch.Generator | None = None,
    rows_per_tile: int = 1024,
) -> Trajectory:
    """Refine N blocks from the root to the endpoint in K passes.

    At each pass the ``n_t`` most confident masked positions of each block are committed; among
    equally confident positions the lower one wins, on every device. The LM head
    runs over masked rows only, as many blocks at a time as have ``rows_per_tile`` of them (or one
    block): the logits alive at once are ``max(rows_per_tile, B - 1) * V``, and a copy of those of
    them that are recorded. A chain adds ``2 n V`` for the n blocks of a tile: when one position
    of each is open, as many as ``2 rows_per_tile * V``.

    Args:
        hidden, head: the drafter, as the head of this file has them.
        anchor_ids: [N] int64, the token at position 0 of each block.
        block_size: B, anchor included.
        steps: K, from 1 to B - 1.
        rule: how tokens are picked and what is recorded.
        chain: corrects the logits of a pass from left to right: by the tokens that are committed,
            and by the pass's own where none is. Confidence and records are of corrected logits.
        generator: needed when ``rule.temperature > 0``; must live on ``anchor_ids``' device.
        rows_per_tile: masked positions through the head at once.

    Returns:
        A :class:`Trajectory` on ``anchor_ids``' device. Positions past the end of a sequence
        are filled like any other.

    Raises:
        ValueError: a temperature without a generator, ``rows_per_tile`` below 1, ``steps`` outside
            1..B-1, or ``top_k`` that does not leave the mask token out.
    """
    if rule.temperature > 0 and generator is None:
        raise ValueError("sampled commitment needs a generator")
    if rows_per_tile < 1:
        raise ValueError(f"rows_per_tile must be at least 1, got {rows_per_tile}")
    blocks = torch.full((len(anchor_ids), block_size), rule.mask_token_id, device=anchor_ids.device)
    blocks[:, 0] = anchor_ids
    commit_pass = torch.zeros_like(blocks)
    recorder = _Recorder.empty(blocks, steps=steps, rule=rule)
    masked = torch.ones_like(blocks, dtype=torch.bool)
    masked[:, 0] = False
    open_positions = block_size - 1
    for t, count in enumerate(commit_counts(block_size, steps), start=1):
        states = hidden(blocks)
        uniform = _uniform(blocks, rule=rule, generator=generator)
        for tile in _tiles(len(blocks), at_once=rows_per_tile // open_positions):
            here = masked[tile]
            logits = head(states[tile][here]).float()
            draws = None if uniform is None else uniform[tile][here]
            filled = None
            if chain is not None:
                pick = partial(_pick, draws=draws, rule=rule)
                filled = chain.fill(logits, states[tile], blocks[tile], here, pick=pick)
            tokens, confidence, normaliser = _predict(logits, filled, draws=draws, rule=rule)
            chosen = _most_confident(confidence, here, count=count)
            recorder.record(t, tile, logits, normaliser, here, chosen)
            # Row order of a boolean index is the order in which the rows were picked.
            blocks[tile][chosen] = tokens[chosen[here]]
            commit_pass[tile][chosen] = t
        masked = masked & (commit_pass == 0)
        open_positions -= count
    return Trajectory(blocks, commit_pass, recorder.top_ids, recorder.top_logp)


def _tiles(count: int, *, at_once: int) -> Iterator[slice]:
    """``count`` blocks, ``at_once`` (but at least one) at a time."""
    at_once = max(at_once, 1)
    return (slice(start, start + at_once) for start in range(0, count, at_once))


def _uniform(
    blocks: Tensor, *, rule: CommitRule, generator: torch.Generator | None
) -> Tensor | None:
    """A number in [0, 1) for each position, [N, B]; None when nothing is sampled.

    Drawn for all blocks at once, so that what is sampled does not depend on the tiles.
    """
    if rule.temperature == 0:
        return None
    draw: Tensor = torch.rand(
        blocks.shape, dtype=torch.float64, generator=generator, device=blocks.device
    )
    return draw


def _predict(
    logits: Tensor, filled: Tensor | None, *, draws: Tensor | None, rule: CommitRule
) -> tuple[Tensor, Tensor, Tensor]:
    """A token for each row, its confidence and the log-normaliser: [R], [R], [R, 1].

    Args:
        logits: [R, V]; the mask token is ruled out in them afterwards.
        filled: [R], the tokens where a chain has picked them.
        draws: [R], the rows' numbers; None when nothing is sampled.
    """
    normaliser = log_normaliser(logits)
    logits[:, rule.mask_token_id] = -torch.inf
    best, tokens = (column.squeeze(1) for column in largest(logits, 1))
    if filled is not None:
        tokens = filled
    elif draws is not None:
        tokens = _sample(logits, draws, rule=rule)
    return tokens, best - normaliser.squeeze(1), normaliser


def _pick(logits: Tensor, rows: Tensor, *, draws: Tensor | None, rule: CommitRule) -> Tensor:
    """A token for each of ``rows`` [m], by their logits [m, V] and their numbers in ``draws``."""
    logits[:, rule.mask_token_id] = -torch.inf
    if draws is None:
        return largest(logits, 1)[1].squeeze(1)
    return _sample(logits, draws[rows], rule=rule)


def _sample(logits: Tensor, uniform: Tensor, *, rule: CommitRule) -> Tensor:
    """One token a row, at ``uniform`` [R] of the tempered distribution over legal tokens; [R]."""
    parts = zip(logits.split(ROWS_AT_ONCE), uniform.split(ROWS_AT_ONCE), strict=True)
    return torch.cat([draw_at((rows / rule.temperature).softmax(dim=-1), at) for rows, at in parts])


def _most_confident(confidence: Tensor, masked: Tensor, *, count: int) -> Tensor:
    """The ``count`` most confident masked positions of each block; [n, B] bool."""
    scores = torch.full(masked.shape, -torch.inf, device=masked.device)
    scores[masked] = confidence
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(masked).scatter_(1, order, True)


@dataclass(frozen=True)
class _Recorder:
    """Top-k ids and log-probabilities, filled in pass by pass. Both [N, T, B-1, k]."""

    rule: CommitRule
    top_ids: Tensor
    top_logp: Tensor

    @classmethod
    def empty(cls, blocks: Tensor, *, steps: int, rule: CommitRule) -> _Recorder:
        count, block_size = blocks.shape
        shape = (count, steps if rule.every_pass else 1, block_size - 1, rule.top_k)
        return cls(
            rule=rule,
            top_ids=torch.full(shape, -1, device=blocks.device),
            top_logp=torch.full(shape, -torch.inf, device=blocks.device),
        )

    def record(
        self,
        t: int,
        tile: slice,
        logits: Tensor,
        normaliser: Tensor,
        masked: Tensor,
        chosen: Tensor,
    ) -> None:
        """Keep the top-k of the rows that pass ``t`` must remember."""
        if self.rule.top_k == 0:
            return
        keep = masked if self.rule.every_pass else chosen
        if self.rule.top_k >= logits.shape[-1]:
            raise ValueError(
                f"top_k must leave out the mask token: at most {logits.shape[-1] - 1}, "
                f"got {self.rule.top_k}"
            )
        rows = keep[masked]
        values, ids = largest(logits[rows], self.rule.top_k)
        recorded = t - 1 if self.rule.every_pass else 0
        self.top_ids[tile, recorded][keep[:, 1:]] = ids
        self.top_logp[tile, recorded][keep[:, 1:]] = values - normaliser[rows]
