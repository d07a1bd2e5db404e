"""A drafter's shape from its run file, and one of that shape without trained weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from specforge.modeling.auto import AutoDraftModel
from torch import nn

from specforge_dstill.data.draft_config import backbone_of, resolve_draft, target_layers
from specforge_dstill.data.feature_files import LAST
from specforge_dstill.maths.block_shape import BlockShape
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.feature_source import features_of


@dataclass(frozen=True)
class DraftShape:
    """What a draft config says of sizes: L target layers of H, blocks of B positions, V tokens.

    ``with_last``: whether the target's last state is stored with its features, too.
    """

    layers: int
    hidden: int
    block_size: int
    vocabulary: int
    with_last: bool

    @classmethod
    def of(cls, config: Any) -> DraftShape:
        """Of a run file's SpecForge config. UserError when it has no DFlash drafter."""
        draft = resolve_draft(config)
        layers = target_layers(draft)
        positions = BlockShape.of(draft.to_dict()).positions
        with_last = LAST in features_of(backbone_of(draft))
        return cls(len(layers), int(draft.hidden_size), positions, int(draft.vocab_size), with_last)


def untrained_drafter(config: Any, *, device: str, blocks_per_group: int) -> BlockDrafter:
    """A drafter with random weights, head and embeddings included: as fast as a trained one."""
    dtype = getattr(torch, config.model.torch_dtype)
    draft_config = resolve_draft(config)
    draft = AutoDraftModel.from_config(draft_config, torch_dtype=dtype)
    vocabulary, hidden = int(draft_config.vocab_size), int(draft_config.hidden_size)
    placed: dict[str, Any] = {"device": device, "dtype": dtype}
    return BlockDrafter(
        draft.to(device),
        lm_head=nn.Linear(hidden, vocabulary, bias=False, **placed).requires_grad_(False),
        embed_tokens=nn.Embedding(vocabulary, hidden, **placed).requires_grad_(False),
        mask_token_id=vocabulary - 1,
        attention_backend="sdpa",
        blocks_per_group=blocks_per_group,
    ).eval()
