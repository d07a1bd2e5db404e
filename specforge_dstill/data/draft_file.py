"""A draft config file: what in it cannot be, told by its own keys before anything loads it.

SpecForge and transformers find most of it, too, some of it after minutes, in tensors' shapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specforge_dstill.data.target_identity import TargetShape
from specforge_dstill.errors import UserError

#: Of the architectures that our modes train, SpecForge's own mode.
BACKBONES = {"DFlashDraftModel": "dflash", "DSparkDraftModel": "dspark"}
#: What must be there, a positive integer. transformers has values of its own for most: Qwen3-8B's.
_COUNTS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "num_target_layers", "block_size"),
)
_POSITIVE = ("rope_theta", "rms_norm_eps", "max_position_embeddings")
_SWITCHES = ("is_causal", "attention_bias", "use_sliding_window")
SLIDING = "sliding_attention"
_LAYERS = ("full_attention", SLIDING)


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
        block_size: ``model.draft_block_size``.
        mask: ``model.mask_token_id``.
    """

    path: Path
    layers: int | None = None
    block_size: int | None = None
    mask: int | None = None

    @classmethod
    def of(cls, model: Any) -> DraftSource | None:
        """Of a run file's ``model:`` section; None where the config is on the Hub, or nowhere."""
        path = draft_path(model.draft_model_config) if model.draft_model_config else None
        if path is None:
            return None
        return cls(
            path,
            layers=model.draft_num_hidden_layers,
            block_size=model.draft_block_size,
            mask=model.mask_token_id,
        )

    def check(self, target_config: Any = None) -> None:
        """UserError for the first fault, with the file's name.

        Args:
            target_config: the target's, None leaves unchecked what must agree with it.
        """
        content = self.read()
        if self.layers is not None:  # SpecForge makes the types of so many
            content = {**content, "num_hidden_layers": self.layers, "layer_types": None}
        if self.block_size is not None:
            content = {**content, "block_size": self.block_size}
        target = None if target_config is None else TargetShape.of(target_config)
        for fault in _faults(content, mask=self.mask, target=target):
            raise UserError(f"{self.path}: {fault}")

    def read(self) -> dict[str, Any]:
        """The file's content. UserError where it is no JSON object."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path}: not valid JSON: {error}") from None
        if not isinstance(content, dict):
            raise UserError(f"{self.path}: is no JSON object; a draft config is one")
        return content


def check_draft_file(model: Any, target_config: Any = None) -> None:
    """The same for a run file's ``model:`` section, where its draft config is a file."""
    source = DraftSource.of(model)
    if source is not None:
        source.check(target_config)


def _faults(
    content: Mapping[str, Any], *, mask: int | None, target: TargetShape | None
) -> Iterator[str]:
    """What is wrong, and how to mend it; later ones take earlier ones as mended."""
    names = content.get("architectures")
    if not (isinstance(names, list) and len(names) == 1 and names[0] in BACKBONES):
        known = " or ".join(json.dumps([name]) for name in BACKBONES)
        yield f"architectures is {_shown(names)}, should be {known}"
    yield from _value_faults(content)
    yield from _shape_faults(content)
    yield from _method_faults(content, mask=mask, target=target)


def _value_faults(content: Mapping[str, Any]) -> Iterator[str]:
    """Of single values."""
    for key in _COUNTS:
        if content.get(key) is None:
            yield f"{key} is missing; name it, a positive integer"
        if not (_is_integer(content[key]) and content[key] > 0):
            yield f"{key} is {_shown(content[key])}, should be a positive integer"
    for key in _POSITIVE:
        value = content.get(key, 1)
        if isinstance(value, bool) or not (isinstance(value, int | float) and value > 0):
            yield f"{key} is {_shown(value)}, should be a positive number"
    for key in _SWITCHES:
        if content.get(key) not in (None, True, False):
            yield f"{key} is {_shown(content[key])}, should be true or false"


def _shape_faults(content: Mapping[str, Any]) -> Iterator[str]:
    """Of values that must go together."""
    layers, types = content["num_hidden_layers"], content.get("layer_types")
    if types is not None:
        if not (isinstance(types, list) and all(one in _LAYERS for one in types)):
            yield f"layer_types is {_shown(types)}, should be a list of {' and '.join(_LAYERS)}"
        if len(types) != layers:
            yield f"layer_types names {len(types)} layers, num_hidden_layers {layers}"
        window = content.get("sliding_window") or 0
        slides = content.get("use_sliding_window") and _is_integer(window) and window > 0
        if SLIDING in types and not slides:
            yield (
                f"layer_types has {SLIDING}; set use_sliding_window to true and sliding_window to "
                "a number of tokens"
            )
    heads, groups = content["num_attention_heads"], content["num_key_value_heads"]
    if heads % groups:
        yield f"num_attention_heads is {heads}, no multiple of num_key_value_heads, {groups}"
    if content["head_dim"] % 2:
        yield f"head_dim is {content['head_dim']}, should be even"
    if content["block_size"] < 2:
        yield "block_size is 1, should be 2 or more: a token that is given and one to draft"


def _method_faults(
    content: Mapping[str, Any], *, mask: int | None, target: TargetShape | None
) -> Iterator[str]:
    """Of what DFlash has of its own, and of what must be the target's, as far as that is known."""
    method = content.get("dflash_config") or {}
    if not isinstance(method, Mapping):
        yield "dflash_config is no JSON object; it holds target_layer_ids and mask_token_id"
        return
    ids = method.get("target_layer_ids")
    if not _are_layers(ids):
        yield (
            f"dflash_config.target_layer_ids is {_shown(ids)}; name the layers of the target that "
            "the drafter reads, each once, from 0"
        )
    token = method.get("mask_token_id") if mask is None else mask
    if token is not None and not _is_integer(token):
        yield f"dflash_config.mask_token_id is {_shown(token)}; name a token's number"
    own = ("num_target_layers", "hidden_size", "vocab_size")
    told = TargetShape(*(content[key] for key in own))
    yield from (target or told).misfits(
        vocab_size=None,  # that of the embeddings counts; another one is a warning
        hidden_size=content["hidden_size"],
        num_target_layers=content["num_target_layers"],
        layer_ids=ids or (),
        mask_token_id=token,
    )


def _are_layers(ids: object) -> bool:
    if not isinstance(ids, list) or not ids or not all(_is_integer(i) for i in ids):
        return False
    return len(set(ids)) == len(ids)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return "missing" if value is None else json.dumps(value)
