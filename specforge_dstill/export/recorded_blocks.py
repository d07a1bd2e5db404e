"""The logits of two drafters on the same recorded blocks.

Shapes: N blocks of a sample, B positions of a block, S tokens, W width of the features,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specforge_dstill.data.feature_files import HIDDEN, load_features
from specforge_dstill.errors import UserError
from specforge_dstill.maths.anchors import valid_anchors
from specforge_dstill.modes.assembly import list_samples
from specforge_dstill.modes.drafter import BlockDrafter

SAMPLES, BLOCKS = 8, 8


@dataclass(frozen=True)
class Recorded:
    """Blocks of one sample of a feature cache.

    Attributes:
        states: [S, W].
        anchors, anchor_ids: [N], positions and tokens.
    """

    states: Tensor
    anchors: Tensor
    anchor_ids: Tensor


@dataclass(frozen=True)
class Compared:
    """Two drafters' logits.

    Attributes:
        difference: the largest between two logits.
        largest: the largest logit, in magnitude.
        same, tokens: predictions that agree, of all.
    """

    blocks: int
    difference: float
    largest: float
    same: int
    tokens: int


def recorded_blocks(cache: str, *, width: int, max_length: int) -> list[Recorded]:
    """Blocks spread over the first samples of a cache.

    Raises:
        UserError: no cache, features of another width, or no block in them.
    """
    if not Path(cache).is_dir():
        raise UserError(f"{cache}: no such feature cache; name one with --cache")
    found = list(_recorded(cache, list_samples(cache)[:SAMPLES], max_length))
    for one in found:
        if one.states.shape[1] != width:
            raise UserError(
                f"{cache}: its states are {one.states.shape[1]} wide, the drafter reads {width}; "
                "it is another target's, or of other layers"
            )
    if not found:
        raise UserError(f"{cache}: its first {SAMPLES} samples hold no block")
    return found


def _recorded(cache: str, names: Sequence[str], max_length: int) -> Iterator[Recorded]:
    for name in names:
        features = load_features(Path(cache) / name)
        tokens = features["input_ids"].flatten()[:max_length]
        anchors = valid_anchors(features["loss_mask"].flatten()[:max_length])
        if len(anchors):
            spread = torch.linspace(0, len(anchors) - 1, min(BLOCKS, len(anchors))).long()
            states = features[HIDDEN].flatten(0, -2)[:max_length].float()
            yield Recorded(states, anchors[spread], tokens[anchors[spread]])


def compare(first: BlockDrafter, second: BlockDrafter, recorded: Sequence[Recorded]) -> Compared:
    """Both drafters' first pass over every block."""
    pairs = [(root_logits(first, one), root_logits(second, one)) for one in recorded]
    return Compared(
        blocks=sum(len(one.anchors) for one in recorded),
        difference=max(float((a - b).abs().max()) for a, b in pairs),
        largest=max(float(b.abs().max()) for _, b in pairs),
        same=sum(int((a.argmax(-1) == b.argmax(-1)).sum()) for a, b in pairs),
        tokens=sum(a[..., 0].numel() for a, _ in pairs),
    )


@torch.inference_mode()
def root_logits(drafter: BlockDrafter, recorded: Recorded) -> Tensor:
    """[N, B-1, V]: of blocks that show their anchor alone, as a server drafts them."""
    blocks = torch.full((len(recorded.anchors), drafter.shape.positions), drafter.mask_token_id)
    blocks[:, 0] = recorded.anchor_ids
    states = drafter(blocks[None], recorded.anchors[None], recorded.states[None])[0, :, 1:]
    rows = states.flatten(0, 1)
    logits = rows.new_empty(len(rows), len(drafter.lm_head.weight))
    return drafter.frozen_head.logits(rows, out=logits).unflatten(0, states.shape[:2])
