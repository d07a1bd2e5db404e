"""The drafter as DSTILL sees it: block tokens in, hidden states out.

All three modes, rollout and evaluation run this one forward pass over SpecForge's
DFlashDraftModel, or the DSparkDraftModel that is made from it. The frozen target embeddings and LM
head sit beside it under the names that SpecForge's backend looks for (``embed_tokens``,
``lm_head``, ``draft_model``).

Shapes: b samples, N blocks, B positions of a block, S context length, L target layers, H hidden
size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from specforge_dstill.maths.block_shape import BlockShape
from specforge_dstill.maths.chain import Chain
from specforge_dstill.maths.frozen_head import FrozenHead, ReusedLogits
from specforge_dstill.maths.rollout import CommitRule, rollout
from specforge_dstill.maths.trajectory import Trajectory
from specforge_dstill.modes.block_attention import BlockLayout
from specforge_dstill.modes.context_cache import ContextCache
from specforge_dstill.modes.grouped_attention import GROUPED_ATTENTION
from specforge_dstill.modes.markov_head import HeadedStates, markov_chain, run_heads
from specforge_dstill.modes.two_call_attention import TWO_CALL_ATTENTION

# Attention of ours by the backend that stands for it; they take a layout in the mask's place.
OURS = {"sdpa": GROUPED_ATTENTION, "fa": TWO_CALL_ATTENTION}

# What each kind of layer ("full_attention", "sliding_attention") may see.
Masks = dict[str, Any]


class BlockDrafter(nn.Module):
    """A DFlash or DSpark drafter over blocks anchored anywhere in a sequence.

    Args:
        draft_model: SpecForge's ``DFlashDraftModel`` or ``DSparkDraftModel``; the only trained
            part.
        lm_head, embed_tokens: the target's, frozen.
        mask_token_id: the id that stands for [MASK].
        attention_backend: ``sdpa`` (in groups of blocks), ``flex_attention``, ``eager``, or
            ``fa`` (flash-attn in two calls, without a backward pass).
        blocks_per_group: how many blocks ``sdpa`` attends at once. Few are fast, too: those of a
            group do not see each other, and are short of context together.
        logit_softcap: the target's final soft-capping of logits (Gemma), if it has one.
    """

    def __init__(
        self,
        draft_model: Any,
        *,
        lm_head: nn.Linear,
        embed_tokens: nn.Embedding,
        mask_token_id: int,
        attention_backend: str = "sdpa",
        blocks_per_group: int = 8,
        logit_softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.draft_model = draft_model
        self.lm_head = lm_head
        self.embed_tokens = embed_tokens
        self.mask_token_id = mask_token_id
        self.shape = BlockShape.of(draft_model.config.to_dict())
        self.attention_backend = attention_backend
        self.blocks_per_group = blocks_per_group
        self.logit_softcap = logit_softcap
        draft_model.config._attn_implementation = OURS.get(attention_backend, attention_backend)

    def forward(
        self,
        block_ids: Tensor,
        anchors: Tensor,
        hidden_states: Tensor,
        context: ContextCache | None = None,
        masks: Masks | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor | HeadedStates:
        """Run one pass over all blocks.

        Args:
            block_ids: [b, N, B] int64, visible tokens and ``mask_token_id``.
            anchors: [b, N] int64, the position of each block's first token.
            hidden_states: [b, S, L * H], the target's features. A block reads those strictly
                before its anchor.
            context: give the same :class:`ContextCache` for repeated passes over the same
                features; they are then projected in the first pass only.
            masks: give :meth:`masks` of these anchors for repeated passes; else made here.
            tokens: [b, N, B] int64, what should be predicted: for a drafter with heads of its own,
                which are trained on the token before each position. They run in here, because
                sharded weights are whole only while the wrapped module runs.

        Returns:
            [b, N, B, H], what the LM head reads; with what the heads give where there are tokens.
        """
        samples, count, _ = block_ids.shape
        size = self.shape.slots
        if masks is None:
            masks = self.masks(anchors, hidden_states.shape[1])
        if context is not None:
            context.begin(own_length=count * size)
            if context.is_filled:
                hidden_states = hidden_states[:, :0]
        states = self.draft_model(
            position_ids=self._positions(anchors, hidden_states.shape[1]),
            attention_mask=masks,
            noise_embedding=self.embed_tokens(self.shape.read(block_ids).flatten(1)),
            target_hidden=hidden_states,
            past_key_values=context,
        )
        states = self.shape.by_position(states.reshape(samples, count, size, -1))
        return states if tokens is None else run_heads(self.draft_model, states, tokens)

    @property
    def has_heads(self) -> bool:
        """Whether the drafter has trained heads of its own."""
        return self.chain is not None or self.has_confidence

    @property
    def has_confidence(self) -> bool:
        """Whether it tells how probably each of its tokens is accepted."""
        return getattr(self.draft_model, "confidence_head", None) is not None

    @property
    def frozen_head(self) -> FrozenHead:
        """The target's LM head."""
        return FrozenHead(self.lm_head.weight, self.lm_head.bias, self.logit_softcap)

    @property
    def chain(self) -> Chain | None:
        """What corrects logits by the token before; None for a drafter without a Markov head."""
        return markov_chain(self.draft_model)

    def head(self) -> ReusedLogits:
        """The LM head as a rollout takes it: what it returns is valid until its next call."""
        return ReusedLogits(self.frozen_head)

    def masks(self, anchors: Tensor, context_length: int) -> Masks:
        """What blocks at ``anchors`` [b, N] may see, for each kind of layer: for all passes."""
        config = self.draft_model.config
        is_causal = getattr(config, "is_causal", None)
        masks = {}
        for kind in set(self.draft_model.layer_types):
            sliding = kind == "sliding_attention"
            layout = BlockLayout(
                anchors=anchors,
                context_length=context_length,
                slots=self.shape.slots,
                window=config.sliding_window if sliding else None,
                # SpecForge and the engines take a sliding layer as causal within the block
                # and a full layer as bidirectional, unless the config says otherwise.
                causal=sliding if is_causal is None else bool(is_causal),
                blocks_per_group=self.blocks_per_group,
            )
            masks[kind] = self._mask(layout)
        return masks

    def _positions(self, anchors: Tensor, context_length: int) -> Tensor:
        """Absolute positions of context and block tokens: [b, S + N * B]."""
        offset = torch.arange(self.shape.slots, device=anchors.device)
        own = (anchors[:, :, None] + offset).flatten(1)
        context = torch.arange(context_length, device=anchors.device).expand(len(anchors), -1)
        return torch.cat([context, own], dim=1)

    def _mask(self, layout: BlockLayout) -> Any:
        if self.attention_backend == "flex_attention":
            return layout.flex_mask()
        return layout.dense_mask() if self.attention_backend == "eager" else layout


@torch.no_grad()
def rollout_blocks(
    drafter: BlockDrafter,
    hidden_states: Tensor,
    anchors: Tensor,
    anchor_ids: Tensor,
    *,
    steps: int,
    rule: CommitRule,
    generator: torch.Generator | None = None,
    blocks_per_pass: int = 512,
    rows_per_tile: int = 1024,
) -> Trajectory:
    """Refine the blocks of one sample; the context is projected once for all of them.

    Args:
        hidden_states: [S, L * H] of the sample.
        anchors, anchor_ids: [N] int64, positions and tokens of the anchors.
        blocks_per_pass: how many blocks are refined together, whatever N is.
        rows_per_tile: rows through the LM head at once.
    """
    context, features, head = ContextCache(), hidden_states[None], drafter.head()
    parts = []
    for start in range(0, max(len(anchors), 1), blocks_per_pass):
        chosen = slice(start, start + blocks_per_pass)
        at = anchors[None, chosen]
        masks = drafter.masks(at, len(hidden_states)) if at.numel() else None

        def hidden(blocks: Tensor, at: Tensor = at, masks: Masks | None = masks) -> Tensor:
            if len(blocks) == 0:  # SpecForge's layers cannot run on nothing
                return features.new_zeros(*blocks.shape, drafter.lm_head.in_features)
            return drafter(blocks[None], at, features, context, masks)[0]

        parts.append(
            rollout(
                hidden,
                head,
                anchor_ids[chosen],
                block_size=drafter.shape.positions,
                steps=steps,
                rule=rule,
                chain=drafter.chain,
                generator=generator,
                rows_per_tile=rows_per_tile,
            )
        )
    return Trajectory.cat(parts)
