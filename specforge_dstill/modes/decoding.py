"""A :class:`BlockDrafter` of 1 or K passes as it drafts in real decoding.

Shapes: one sequence; S context, n new context positions, B positions of a block, W features,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.evaluation.rules import Draft
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.maths.acceptance import accepted_prefix
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
        min_confidence: a block ends before the first token that is accepted with less than this
            probability, by the drafter's confidence head; None drafts whole blocks.

    Raises:
        ValueError: sampled drafts of several passes, whose probabilities are not known; a least
            confidence for several passes, or for a drafter that does not tell its own.
    """

    drafter: BlockDrafter
    steps: int
    sampling: Sampling | None = None
    min_confidence: float | None = None

    def __post_init__(self) -> None:
        if self.sampling is not None:
            check_rejection(steps=self.steps)
        if self.min_confidence is None:
            return
        if self.steps > 1:
            raise ValueError(f"a least confidence is for drafts of one pass, not of {self.steps}")
        if not self.drafter.has_confidence:
            raise ValueError("a least confidence needs a drafter with a confidence head")

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
        """Draft a block: new features [n, W] and the anchor's token [1] -> B-1 tokens.

        Args:
            generator: needed to sample, ``ValueError`` without one.
        """
        position = self._context.length + len(states)
        hidden = partial(
            self._pass,
            features=states[None].to(self._drafter.lm_head.weight.dtype),
            position=position,
            masks=self._masks(position),
        )
        with _plain_attention(self._drafter.draft_model.config):
            if self._decoding.steps == 1:
                root = self._root(anchor)
                return self._one_pass(root, hidden(root), generator)
            trajectory = rollout(
                hidden,
                self._head,
                anchor,
                block_size=self._drafter.shape.positions,
                steps=self._decoding.steps,
                rule=CommitRule(self._drafter.mask_token_id, top_k=0),
                chain=self._drafter.chain,
            )
        return Draft(trajectory.endpoint[0, 1:])

    def _root(self, anchor: Tensor) -> Tensor:
        """[1, B]: the anchor and masks."""
        drafted = self._drafter.shape.positions - 1
        masked = anchor.new_full((drafted,), self._drafter.mask_token_id)
        return torch.cat([anchor, masked])[None]

    def _pass(self, blocks: Tensor, features: Tensor, position: int, masks: Masks) -> Tensor:
        """One pass over blocks [1, B] anchored at ``position``.

        Args:
            features: [1, n, W], of the n positions before it; the first pass projects them.

        Returns:
            [1, B, H].
        """
        shape = self._drafter.shape
        fresh = features[:, features.shape[1] - (position - self._context.length) :]
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

    def _one_pass(self, root: Tensor, states: Tensor, generator: torch.Generator | None) -> Draft:
        """The block of states [1, B, H]: the same tokens as a rollout of one pass.

        Every position at once; one after the other where the token before corrects the logits.
        """
        logits = self._head(states[0, 1:])
        logits[:, self._drafter.mask_token_id] = -torch.inf
        sampling, chain = self._decoding.sampling, self._drafter.chain
        drawn_from: list[Tensor] = []

        def pick(rows: Tensor, _: Tensor | None = None) -> Tensor:
            if sampling is None or sampling.is_greedy:
                return largest(rows, 1)[1].squeeze(1)
            drawn_from.append(sampling.probabilities(rows))
            return draw(drawn_from[-1], generator=generator)

        if chain is None:
            tokens = pick(logits)
        else:
            masked = torch.arange(root.shape[1], device=root.device)[None] > 0
            tokens = chain.fill(logits, states, root, masked, pick=pick)
        draft = Draft(tokens, _joined(drawn_from))
        return draft.first(self._wanted(root, states, tokens))

    def _wanted(self, root: Tensor, states: Tensor, tokens: Tensor) -> int:
        """How many of the drafted tokens are worth the target's time, by the confidence head.

        A position's confidence comes from the tokens before it, so whether it is verified does not
        depend on its own token: what is accepted stays distributed as the target's samples are.
        """
        least = self._decoding.min_confidence
        if least is None:
            return len(tokens)
        before = torch.cat([root[0, :1], tokens[:-1]])[None]
        found = self._drafter.draft_model.predict_confidence(states[:, 1:], prev_token_ids=before)
        return int(accepted_prefix(found.sigmoid().cumprod(dim=1) >= least))

    def _masks(self, position: int) -> Masks:
        """What a block may see. All of the context, and of itself, needs no mask."""
        at = torch.tensor([[position]], device=self._drafter.lm_head.weight.device)
        return {kind: _dense(layout) for kind, layout in self._drafter.masks(at, position).items()}


def _joined(parts: list[Tensor]) -> Tensor | None:
    if len(parts) > 1:
        return torch.cat(parts)
    return parts[0] if parts else None


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
