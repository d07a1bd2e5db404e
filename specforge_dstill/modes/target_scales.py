"""What a target does to its embeddings and logits beside looking them up and multiplying them.

SpecForge's ``TargetEmbeddingsAndHead`` loads weights alone. Gemma multiplies its embeddings by the
square root of their width, inside its embedding module, and bounds its final logits; published
drafters for it were trained on both, and engines that serve them apply both.
"""

from __future__ import annotations

from typing import Any

import torch
from specforge.modeling.target.target_utils import target_text_config
from torch import Tensor, nn

# Language models of transformers whose embedding module scales, by sqrt(hidden_size).
_SCALING = frozenset({"gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text"})


def logit_softcap(target_config: Any) -> float | None:
    """The bound that the target puts on its final logits (Gemma), if any."""
    cap = getattr(target_text_config(target_config), "final_logit_softcapping", None)
    return None if cap is None else float(cap)


def embed_scale(target_config: Any) -> float | None:
    """What the target multiplies its embeddings by, if anything."""
    text = target_text_config(target_config)
    return float(text.hidden_size) ** 0.5 if text.model_type in _SCALING else None


def as_target_embeds(embeddings: nn.Embedding, target_config: Any) -> nn.Embedding:
    """The embeddings as the target itself reads them; the weights stay the same object."""
    scale = embed_scale(target_config)
    return embeddings if scale is None else ScaledEmbedding(embeddings, scale)


class ScaledEmbedding(nn.Embedding):
    """Embeddings times ``scale``, which is rounded to their dtype first, as transformers does."""

    def __init__(self, embeddings: nn.Embedding, scale: float) -> None:
        vocabulary, width = embeddings.weight.shape
        super().__init__(vocabulary, width, device="meta")
        self.weight = embeddings.weight
        self.scale = scale

    def forward(self, ids: Tensor) -> Tensor:
        """[...] int64 -> [..., H]."""
        rounded = torch.tensor(self.scale, dtype=self.weight.dtype).item()
        return super().forward(ids) * rounded
