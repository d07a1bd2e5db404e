"""What of a drafter the engines are told, read from SpecForge's draft config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specforge.modeling.draft.dflash import resolve_dflash_attention_layout

from specforge_dstill.data.draft_config import (
    confidence_enabled,
    known_mask,
    target_layers,
)
from specforge_dstill.data.draft_file import BACKBONES, SLIDING
from specforge_dstill.errors import UserError
from specforge_dstill.maths.block_shape import BlockShape

DSPARK = "DSparkDraftModel"
ARCHITECTURES = tuple(BACKBONES)


@dataclass(frozen=True)
class Markov:
    """DSpark's heads: what they are made of."""

    rank: int
    kind: str
    confidence: bool
    confidence_with_markov: bool


@dataclass(frozen=True)
class DraftFacts:
    """A drafter of blocks.

    Attributes:
        block_size: B, the anchor included.
        layer_ids: target layers whose outputs it reads, from 0.
        is_causal: within the block; None where its layers differ, sliding ones causal and full
            ones not, which is what every engine does unless it is told.
        markov: None for a DFlash drafter.
    """

    architecture: str
    block_size: int
    layer_ids: tuple[int, ...]
    mask_token_id: int
    layer_types: tuple[str, ...]
    window: int | None
    is_causal: bool | None
    markov: Markov | None

    @classmethod
    def of(cls, config: Any, *, mask_token_id: int | None = None) -> DraftFacts:
        """Of a draft config.

        Args:
            mask_token_id: the run file's, which counts before the config's.

        Raises:
            UserError: an architecture that is not exported, layers it cannot have, or no mask.
        """
        architecture = (config.architectures or ["none"])[0]
        if architecture not in ARCHITECTURES:
            raise UserError(
                f"the draft config names architecture {architecture}; exported are "
                f"{' and '.join(ARCHITECTURES)}"
            )
        method = getattr(config, "dflash_config", None) or {}
        mask = method.get("mask_token_id") if mask_token_id is None else mask_token_id
        try:
            layer_types, window = resolve_dflash_attention_layout(config)
        except ValueError as error:
            raise UserError(f"the draft config: {error}") from None
        return cls(
            architecture=architecture,
            block_size=int(config.block_size),
            layer_ids=tuple(target_layers(config)),
            mask_token_id=known_mask(mask),
            layer_types=layer_types,
            window=window,
            is_causal=_causality(layer_types, getattr(config, "is_causal", None)),
            markov=_markov(method) if architecture == DSPARK else None,
        )

    @property
    def is_mixed(self) -> bool:
        """Whether sliding and full layers alternate."""
        return len(set(self.layer_types)) > 1

    @property
    def needs_gpu_in_vllm(self) -> bool:
        """Whether vLLM serves it with its second runner only, which has no CPU build."""
        return self.is_mixed or self.markov is not None

    @property
    def needs_is_causal(self) -> bool:
        """Whether it would draft worse in an engine that does not read ``is_causal``."""
        ordinary = {kind == SLIDING for kind in self.layer_types}
        return self.is_causal is not None and ordinary != {self.is_causal}

    @property
    def drafted(self) -> int:
        """How many tokens a block drafts: of DSpark's the anchor's own slot drafts one, too."""
        shape = {"block_size": self.block_size, "architectures": [self.architecture]}
        return BlockShape.of(shape).positions - 1


def _causality(layer_types: Sequence[str], told: bool | None) -> bool | None:
    if told is not None:
        return bool(told)
    kinds = {kind == SLIDING for kind in layer_types}
    return kinds.pop() if len(kinds) == 1 else None


def _markov(method: Mapping[str, Any]) -> Markov:
    """As SpecForge's class reads them."""
    return Markov(
        rank=int(method.get("markov_rank") or 0),
        kind=str(method.get("markov_head_type", "vanilla")).lower(),
        confidence=confidence_enabled(method),
        confidence_with_markov=bool(method.get("confidence_head_with_markov", False)),
    )
