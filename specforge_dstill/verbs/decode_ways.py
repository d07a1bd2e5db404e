"""The ways of decoding that an evaluation compares: the target alone, and with each drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specforge_dstill.data.capture_transformers import decoder_layers
from specforge_dstill.evaluation.decoding import Decoded, decode, decode_plainly
from specforge_dstill.evaluation.interleaved import Way
from specforge_dstill.evaluation.rules import Rejection, Rule
from specforge_dstill.evaluation.speed import PLAIN
from specforge_dstill.evaluation.transformers_target import TransformersTarget
from specforge_dstill.modes.decoding import DecodingDrafter
from specforge_dstill.modes.drafter import BlockDrafter


def way_name(drafter: str, steps: int) -> str:
    """Of a drafter at a number of passes."""
    return f"{drafter}:{steps}"


def make_ways(
    model: Any,
    layers: Sequence[int],
    drafters: Mapping[tuple[str, int], BlockDrafter],
    *,
    rule: Rule,
    stop_ids: Sequence[int],
    min_confidence: float | None = None,
) -> dict[str, Way]:
    """Ways by name, plain decoding first.

    Args:
        model: the target, a transformers model.
        layers: whose states the drafters read.
        drafters: by name and number of passes.
        min_confidence: of the tokens that are verified, see :class:`DecodingDrafter`.
    """
    target = TransformersTarget(model, _state_modules(model, layers))
    options: dict[str, Any] = {"rule": rule, "stop_ids": stop_ids}
    ways = {PLAIN: _way(partial(decode_plainly, target, **options))}
    drawn = rule.sampling if isinstance(rule, Rejection) else None
    for (name, steps), drafter in drafters.items():
        _share_frozen(drafter, model)
        drafting = DecodingDrafter(drafter, steps, drawn, min_confidence)
        ways[way_name(name, steps)] = _way(partial(decode, target, drafting, **options))
    return ways


def _way(decoding: Callable[..., Decoded]) -> Way:
    def way(prompt: Tensor, max_new_tokens: int, generator: torch.Generator) -> Decoded:
        return decoding(prompt, max_new_tokens=max_new_tokens, generator=generator)

    return way


def _state_modules(model: Any, layers: Sequence[int]) -> list[nn.Module]:
    """The modules that give the features: layers, and for the last one the decoder's own end."""
    decoder = model.get_decoder()
    blocks = decoder_layers(decoder)
    return [decoder if layer == len(blocks) - 1 else blocks[layer] for layer in layers]


def _share_frozen(drafter: BlockDrafter, model: Any) -> None:
    """Let the drafter read the target's own embeddings and head, not copies of them."""
    pairs = (
        (drafter.embed_tokens, model.get_input_embeddings()),
        (drafter.lm_head, model.get_output_embeddings()),
    )
    for own, theirs in pairs:
        if own.weight.shape == theirs.weight.shape and own.weight.dtype == theirs.weight.dtype:
            own.weight = theirs.weight
