"""What tells one target from another: its configuration, its weights, and what a drafter fits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class TargetShape:
    """What of a target a drafter must agree with.

    Attributes:
        layers, hidden_size, vocab_size: of the language model; rows of its embeddings.
    """

    layers: int
    hidden_size: int
    vocab_size: int

    @classmethod
    def of(cls, config: Any) -> TargetShape:
        """Of a transformers configuration."""
        from specforge.modeling.target.target_utils import target_text_config, target_vocab_size

        text = target_text_config(config)
        return cls(int(text.num_hidden_layers), int(text.hidden_size), target_vocab_size(config))

    def misfits(
        self,
        *,
        vocab_size: int | None,
        hidden_size: int,
        num_target_layers: int | None,
        layer_ids: Sequence[int],
        mask_token_id: int | None,
    ) -> Iterator[str]:
        """What of a draft config is another target's. None for what is not compared."""
        if vocab_size not in (None, self.vocab_size):
            yield f"vocab_size is {vocab_size}, the target's is {self.vocab_size}"
        if hidden_size != self.hidden_size:
            yield f"hidden_size is {hidden_size}, the target's is {self.hidden_size}"
        if num_target_layers not in (None, self.layers):
            yield f"num_target_layers is {num_target_layers}, the target has {self.layers}"
        if not all(0 <= layer < self.layers for layer in layer_ids):
            yield (
                f"dflash_config.target_layer_ids is {list(layer_ids)}, the target has layers 0 to "
                f"{self.layers - 1}"
            )
        if mask_token_id is not None and not 0 <= mask_token_id < self.vocab_size:
            yield (
                f"mask_token_id is {mask_token_id}, the target has tokens 0 to "
                f"{self.vocab_size - 1}"
            )


def config_hash(config: Any) -> str:
    """Hash (16 hex digits) of a transformers configuration, without where it was loaded from."""
    values = config.to_dict()
    for name in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        values.pop(name, None)
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def weights_fingerprint(target: str) -> str | None:
    """What tells one training of a target from another; None for a target that is no folder.

    A hash of each weight file's name, size, and a piece of its middle and its end: a retrained
    model differs there, and a large one is not read whole.
    """
    folder = Path(target)
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    files = sorted(f for suffix in ("safetensors", "bin") for f in folder.glob(f"*.{suffix}"))
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}".encode())
        with file.open("rb") as handle:
            for position in (size // 2, size - _PIECE_BYTES):
                handle.seek(max(0, position))
                digest.update(handle.read(_PIECE_BYTES))
    return digest.hexdigest()[:16]
