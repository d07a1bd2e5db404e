"""A draft config file: what in it cannot be, told by its own keys before anything loads it.

SpecForge and transformers find most of it, too, some of it after minutes, in tensors' shapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specforge_dstill.data.draft_config import BACKBONES
from specforge_dstill.errors import UserError
from specforge_dstill.files import reading

_NEEDED = ("vocab_size", "hidden_size", "num_hidden_layers")
_SIZES = (
    *(*_NEEDED, "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    *("block_size", "num_target_layers"),
)


def draft_path(name: str) -> Path | None:
    """The file of a draft config, by its own name or its folder's; None for one on the Hub."""
    path = Path(name).expanduser()
    path = path / "config.json" if path.is_dir() else path
    return path if path.is_file() else None


@dataclass(frozen=True)
class DraftSource:
    """A draft config file and what a run file puts over it.

    Attributes:
        layers: ``model.draft_num_hidden_layers``.
        mask: ``model.mask_token_id``.
    """

    path: Path
    layers: int | None = None
    mask: int | None = None

    @classmethod
    def of(cls, model: Any) -> DraftSource | None:
        """Of a run file's ``model:`` section; None where the config is on the Hub, or nowhere."""
        if not model.draft_model_config:
            return None
        path = draft_path(model.draft_model_config)
        if path is None:
            return None
        return cls(path, layers=model.draft_num_hidden_layers, mask=model.mask_token_id)

    def check(self, target_config: Any = None) -> None:
        """UserError for the first fault, with the file's name. Other methods' drafters pass.

        Args:
            target_config: the target's, None leaves unchecked what must agree with it.
        """
        content = self.read()
        if not set(content.get("architectures") or ()) & set(BACKBONES):
            return
        if self.layers is not None:
            content = {**content, "num_hidden_layers": self.layers, "layer_types": None}
        text = getattr(target_config, "text_config", None) or target_config
        for fault in _faults(content, mask=self.mask, target=text):
            raise UserError(f"{self.path}: {fault}")

    def read(self) -> dict[str, Any]:
        """The file's content. UserError where it is no JSON object."""
        with reading(self.path):
            text = self.path.read_text(encoding="utf-8")
        try:
            content = json.loads(text)
        except ValueError as error:
            raise UserError(f"{self.path}: not valid JSON: {error}") from None
        if not isinstance(content, dict):
            raise UserError(f"{self.path}: is no JSON object; a draft config is one")
        return content


def check_draft_file(model: Any, target_config: Any = None) -> None:
    """The same for a run file's ``model:`` section, where its draft config is a file."""
    source = DraftSource.of(model)
    if source is not None:
        source.check(target_config)


def _faults(content: Mapping[str, Any], *, mask: int | None, target: Any) -> Iterator[str]:
    """What is wrong, each fault with its mend; later ones take earlier ones as mended."""
    for key in _NEEDED:
        if content.get(key) is None:
            yield f"{key} is missing; name {_MEANING[key]}"
    for key in _SIZES:
        value = content.get(key)
        if value is not None and not (_is_integer(value) and value > 0):
            yield f"{key} is {value!r}, should be a positive integer"
    yield from _shape_faults(content)
    yield from _method_faults(content, mask=mask, target=target)
    hidden = getattr(target, "hidden_size", None)
    if hidden is not None and content["hidden_size"] != hidden:
        yield (
            f"hidden_size is {content['hidden_size']}, the target's is {hidden}; the drafter reads "
            f"the target's embeddings: set it to {hidden}"
        )


_MEANING = {
    "vocab_size": "the target's number of tokens",
    "hidden_size": "the target's width",
    "num_hidden_layers": "the drafter's number of layers",
}


def _shape_faults(content: Mapping[str, Any]) -> Iterator[str]:
    layers, types = content["num_hidden_layers"], content.get("layer_types")
    if types is not None and len(types) != layers:
        yield f"layer_types names {len(types)} layers, num_hidden_layers {layers}; make them agree"
    heads, groups = content.get("num_attention_heads"), content.get("num_key_value_heads")
    if heads and groups and heads % groups:
        yield (
            f"num_attention_heads is {heads}, no multiple of num_key_value_heads, {groups}; "
            "change one of the two"
        )


def _method_faults(content: Mapping[str, Any], *, mask: int | None, target: Any) -> Iterator[str]:
    method = content.get("dflash_config") or {}
    if not isinstance(method, Mapping):
        yield "dflash_config is no JSON object; it holds target_layer_ids and mask_token_id"
        return
    ids = method.get("target_layer_ids")
    depth = getattr(target, "num_hidden_layers", None)
    if not _are_layers(ids, depth):
        said = "missing" if ids is None else json.dumps(ids)
        last = "its last" if depth is None else depth - 1
        yield (
            f"dflash_config.target_layer_ids is {said}; name the layers of the target that the "
            f"drafter reads, from 0 to {last}, such as [1, 9, 17]"
        )
    token = method.get("mask_token_id") if mask is None else mask
    if token is not None and not (_is_integer(token) and 0 <= token < content["vocab_size"]):
        yield (
            f"dflash_config.mask_token_id is {token!r}; name a token from 0 to "
            f"{content['vocab_size'] - 1}, vocab_size less one"
        )


def _are_layers(ids: object, depth: int | None) -> bool:
    if not isinstance(ids, list) or not ids:
        return False
    return all(_is_integer(i) and 0 <= i < (i + 1 if depth is None else depth) for i in ids)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
