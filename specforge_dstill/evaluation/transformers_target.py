"""A transformers model as a target to decode with: a cache that is rolled back, and features.

Shapes: n tokens read at once, V vocabulary, W width of the features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.decoding import Read


@dataclass(frozen=True)
class TransformersTarget:
    """A causal language model.

    Attributes:
        model: with key-value caches for all layers, see :func:`check_rolls_back`.
        recorded: the modules whose outputs, side by side, are the features.
    """

    model: Any
    recorded: Sequence[nn.Module]

    def begin(self) -> TransformersSession:
        return TransformersSession(self)


class TransformersSession:
    """One sequence, its keys and values kept by a DynamicCache."""

    def __init__(self, target: TransformersTarget) -> None:
        from transformers import DynamicCache

        self._target = target
        self._cache = DynamicCache()

    def read(self, tokens: Tensor, *, every_logit: bool, states: bool) -> Read:
        with _outputs(self._target.recorded if states else ()) as outputs:
            read = self._target.model(
                input_ids=tokens[None],
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=0 if every_logit else 1,
            )
        if not states:
            return Read(read.logits[0], None)
        in_order = [outputs[place] for place in range(len(outputs))]
        return Read(read.logits[0], torch.cat(in_order, dim=-1)[0])

    def roll_back(self, length: int) -> None:
        self._cache.crop(length)


@contextmanager
def _outputs(modules: Sequence[nn.Module]) -> Iterator[dict[int, Tensor]]:
    """The states [1, n, H] that each module gives in a pass, by its place in ``modules``."""
    found: dict[int, Tensor] = {}

    def keep(place: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            # A layer gives its states, perhaps in a tuple; a whole decoder a named output.
            states: Any = output[0] if isinstance(output, tuple) else output
            found[place] = getattr(states, "last_hidden_state", states)

        return hook

    hooks = [module.register_forward_hook(keep(place)) for place, module in enumerate(modules)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def check_rolls_back(config: Any) -> None:
    """Refuse a target that cannot forget rejected tokens.

    Such a target keeps a running state (Mamba, linear attention), or in a sliding window only
    the last tokens, so that those before them are lost when a rejected token pushes them out.

    Args:
        config: the target's transformers configuration.

    Raises:
        UserError: names the target and what of it stands in the way.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    kinds = sorted(_other_kinds(config))
    family = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    # transformers' own mark of models whose cache cannot be rewound.
    if not kinds and not getattr(family, "_is_stateful", False):
        return
    name = family.__name__ if family else config.model_type
    what = f"layers of kind {', '.join(kinds)}" if kinds else "a running state"
    raise _refusal(f"{name} has {what}")


@torch.inference_mode()
def check_own_code(model: Any) -> None:
    """As :func:`check_rolls_back`, of a loaded model with its own code, not transformers'.

    Its configuration does not tell how it keeps what it has read, so it reads two tokens: each of
    its layers must then hold the keys and values of both, in the cache that it was given.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache
    from transformers.cache_utils import DynamicLayer

    if type(model.config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return
    name, cache = type(model).__name__, DynamicCache()
    if getattr(model, "_is_stateful", False):
        raise _refusal(f"{name} has a running state")
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    model(input_ids=ids, past_key_values=cache, use_cache=True)
    whole = sum(type(one) is DynamicLayer and one.get_seq_length() == 2 for one in cache.layers)
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    if whole < layers:
        what = f"keeps the keys and values of all tokens in {whole} of {layers} layers"
        raise _refusal(f"{name} {what}")


def _refusal(what: str) -> UserError:
    return UserError(
        f"{what}: in transformers its cache cannot be rolled back after a rejected draft; serve it "
        "with SGLang or vLLM and measure there (evaluate --replay measures acceptance without "
        "decoding)"
    )


def _other_kinds(config: Any) -> set[str]:
    """The kinds of layers that do not simply keep the keys and values of every token."""
    from transformers.cache_utils import LAYER_TYPE_CACHE_MAPPING, DynamicCache, DynamicLayer

    kinds = getattr(config.get_text_config(decoder=True), "layer_types", None)
    if kinds:
        return {
            kind
            for kind in kinds
            if LAYER_TYPE_CACHE_MAPPING.get(kind, DynamicLayer) is not DynamicLayer
        }
    layers = DynamicCache(config=config).layers
    return {
        "sliding_attention" if layer.is_sliding else type(layer).__name__
        for layer in layers
        if type(layer) is not DynamicLayer
    }
