"""A :class:`BlockDrafter` of 1 or K passes as it drafts in real decoding.

Shapes: one sequence; S context, n new context positions, B positions of a block, W features,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.evaluation.rules import Draft
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.maths.drawing import draw
from specforge_dstill.maths.logits import largest
from specforge_dstill.maths.rollout import CommitRule, rollout
from specforge_dstill.maths.verification import check_rejection
from specforge_dstill.modes.block_attention import BlockLayout
from specforge_dstill.modes.drafter import BlockDrafter, Masks
from specforge_dstill.modes.growing_context import GrowingContext


@dataclass(frozen=True)
class DecodingDrafter:
    """Drafts in ``steps`` passes: 1 is the one-pass drafter as it is served.

    Attributes:
        sampling: what tokens are drawn from, for rejection; the mask token is left out first.
            None commits the most probable tokens.

    Raises:
        ValueError: sampled drafts of several passes, whose probabilities are not known.
    """

    drafter: BlockDrafter
    steps: int
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        if self.sampling is not None:
            check_rejection(steps=self.steps)

    def begin(self) -> DecodingSession:
        return DecodingSession(self)


class DecodingSession:
    """Follows one sequence; each position of its context is projected once."""

    def __init__(self, decoding: DecodingDrafter) -> None:
        self._decoding = decoding
        self._drafter = decoding.drafter
        self._head = decoding.drafter.head()
        self._context = GrowingContext()

    @torch.inference_mode()
    def draft(self, states: Tensor, anchor: Tensor, generator: torch.Generator | None) -> Draft:
        """Draft a block: new features [n, W] and the anchor's token [1] -> B-1 tokens."""
        fresh = states[None].to(self._drafter.lm_head.weight.dtype)
        position = self._context.length + len(states)
        masks = self._masks(position)

        def hidden(blocks: Tensor) -> Tensor:
            nonlocal fresh
            found = self._pass(blocks, fresh, position, masks)
            fresh = fresh[:, :0]
            return found

        with _plain_attention(self._drafter.draft_model.config):
            if self._decoding.steps == 1:
                return self._one_pass(hidden(self._root(anchor))[0, 1:], generator)
            trajectory = rollout(
                hidden,
                self._head,
                anchor,
                block_size=self._drafter.shape.positions,
                steps=self._decoding.steps,
                rule=CommitRule(self._drafter.mask_token_id, top_k=0),
            )
        return Draft(trajectory.endpoint[0, 1:])

    def _root(self, anchor: Tensor) -> Tensor:
        """[1, B]: the anchor and masks."""
        drafted = self._drafter.shape.positions - 1
        masked = anchor.new_full((drafted,), self._drafter.mask_token_id)
        return torch.cat([anchor, masked])[None]

    def _pass(self, blocks: Tensor, fresh: Tensor, position: int, masks: Masks) -> Tensor:
        """One pass over blocks [1, B] anchored at ``position``; ``fresh`` [1, n, W] is projected.

        Returns:
            [1, B, H].
        """
        shape = self._drafter.shape
        end = position + shape.slots
        places = torch.arange(self._context.length, end, device=blocks.device)
        states: Tensor = self._drafter.draft_model(
            position_ids=places[None],
            attention_mask=masks,
            noise_embedding=self._drafter.embed_tokens(shape.read(blocks)),
            target_hidden=fresh,
            past_key_values=self._context,
        )
        self._context.advance(fresh.shape[1])
        return shape.by_position(states)

    def _one_pass(self, rows: Tensor, generator: torch.Generator | None) -> Draft:
        """Every position at once, [B-1, H]. The same tokens as a rollout of one pass."""
        logits = self._head(rows)
        logits[:, self._drafter.mask_token_id] = -torch.inf
        sampling = self._decoding.sampling
        if sampling is None or sampling.is_greedy:
            return Draft(largest(logits, 1)[1].squeeze(1))
        probabilities = sampling.probabilities(logits)
        return Draft(draw(probabilities, generator=generator), probabilities)

    def _masks(self, position: int) -> Masks:
        """What a block may see. All of the context, and of itself, needs no mask."""
        at = torch.tensor([[position]], device=self._drafter.lm_head.weight.device)
        return {kind: _dense(layout) for kind, layout in self._drafter.masks(at, position).items()}


def _dense(layout: Any) -> Tensor | None:
    assert isinstance(layout, BlockLayout), "of an attention that takes layouts"
    return None if layout.window is None and not layout.causal else layout.dense_mask()


@contextmanager
def _plain_attention(config: Any) -> Iterator[None]:
    """Plain SDPA in the drafter's layers: one block needs no groups."""
    before = config._attn_implementation
    config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = before
