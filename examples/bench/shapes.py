"""The sizes at which the bench runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MASK_TOKEN_ID = 3
DEFAULT_SHAPE = "smollm2"


@dataclass(frozen=True)
class Shape:
    """A drafter, its batch, and where it runs.

    Attributes:
        target_layers: how many layers of the target the features hold side by side.
        anchors: blocks a sample; batch: samples a step.
        product: side of the square matrices whose product gives the machine's rate.
        steps_per_loop: steps over which the loader's wait is counted.
    """

    name: str
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    draft_layers: int
    target_layers: int
    sequence: int
    anchors: int
    batch: int
    block_size: int = 16
    steps: int = 8
    top_k: int = 16
    device: str = "cpu"
    dtype: str = "float32"
    attention: str = "sdpa"
    product: int = 2048
    steps_per_loop: int = 6

    def draft_config(self) -> dict[str, Any]:
        """The draft config of SpecForge's DFlashDraftModel."""
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.draft_layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": 2 * self.sequence,
            "rms_norm_eps": 1e-6,
            "num_target_layers": 4 * self.target_layers,
            "block_size": self.block_size,
            "layer_types": ["full_attention"] * self.draft_layers,
            "tie_word_embeddings": False,
            "dflash_config": {
                "target_layer_ids": list(range(self.target_layers)),
                "mask_token_id": MASK_TOKEN_ID,
            },
        }


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            name=DEFAULT_SHAPE,
            hidden=576,
            vocabulary=49_152,
            heads=9,
            kv_heads=3,
            head_dim=64,
            intermediate=1536,
            draft_layers=2,
            target_layers=4,
            sequence=512,
            anchors=64,
            batch=2,
        ),
        Shape(
            name="gpt-oss-120b",
            hidden=2880,
            vocabulary=201_088,
            heads=64,
            kv_heads=8,
            head_dim=64,
            intermediate=7680,
            draft_layers=8,
            target_layers=5,
            sequence=4096,
            anchors=512,
            batch=1,
            device="cuda",
            dtype="bfloat16",
            attention="flex_attention",
            product=8192,
            steps_per_loop=12,
        ),
        Shape(
            name="tiny",
            hidden=32,
            vocabulary=200,
            heads=4,
            kv_heads=2,
            head_dim=8,
            intermediate=48,
            draft_layers=2,
            target_layers=2,
            sequence=64,
            anchors=4,
            batch=2,
            block_size=8,
            steps=3,
            top_k=5,
            product=64,
        ),
    )
}
