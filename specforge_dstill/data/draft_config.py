"""The draft config of a run file: it names the drafter's architecture, whatever the mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specforge_dstill.data.draft_file import BACKBONES, check_draft_file
from specforge_dstill.errors import UserError


def resolve_draft(config: Any) -> Any:
    """The draft config of a run file, ``model.draft_*`` overrides applied, as in training.

    Raises:
        UserError: there is none, or it is none of a DFlash or DSpark drafter.
    """
    from huggingface_hub.errors import StrictDataclassError
    from specforge.algorithms.dflash.providers import algorithm_providers
    from specforge.training.model_loading import resolve_draft_config

    provider = replace(
        algorithm_providers().model.draft_config, compatible_architectures=frozenset(BACKBONES)
    )
    check_draft_file(config.model)
    try:
        return resolve_draft_config(config, provider=provider)
    except (OSError, ValueError, AttributeError, TypeError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        source = config.model.draft_model_config
        raise UserError(
            f"model.draft_model_config: {source} is no DFlash or DSpark drafter's: {reason}"
        ) from error


def backbone_of(draft_config: Any) -> str:
    """``dflash`` or ``dspark``: SpecForge's mode for a draft config of :func:`resolve_draft`."""
    return BACKBONES[draft_config.architectures[0]]


def target_layers(draft_config: Any) -> list[int]:
    """The target layers whose outputs the drafter reads, from 0: named, or SpecForge's spread."""
    from specforge.modeling.draft.dflash import build_target_layer_ids

    method = getattr(draft_config, "dflash_config", None) or {}
    layers = method.get("target_layer_ids") or build_target_layer_ids(
        draft_config.num_target_layers, draft_config.num_hidden_layers
    )
    return [int(layer) for layer in layers]


def known_mask(token: int | None, *, to: str = "the one that the drafter was trained with") -> int:
    """The mask token. UserError where no config names one, which says ``to`` what to set it."""
    if token is None:
        raise UserError(
            "which token stands for the mask is not known: set dflash_config.mask_token_id in the "
            f"draft config, or model.mask_token_id, to {to}"
        )
    return int(token)


def check_mask(config: Any, draft_config: Any) -> None:
    """UserError for a training whose configs name no mask token.

    SpecForge would take one that is free, else the pad or stop token, which a drafter of ours could
    then never propose; and no later command could know which it was.
    """
    method = getattr(draft_config, "dflash_config", None) or {}
    named = config.model.mask_token_id
    known_mask(
        method.get("mask_token_id") if named is None else named,
        to="a token that neither prompts nor answers hold, such as an unused special token",
    )


def tells_confidence(draft_config: Any) -> bool:
    """Whether the drafter has a confidence head."""
    method = getattr(draft_config, "dflash_config", None) or {}
    return backbone_of(draft_config) == "dspark" and confidence_enabled(method)


def confidence_enabled(method: Mapping[str, Any]) -> bool:
    """Whether a DSpark drafter's ``dflash_config`` asks for a confidence head, to its class."""
    alpha = float(method.get("confidence_head_alpha") or 0.0)
    return bool(method.get("enable_confidence_head", alpha > 0))


def backbone_of_run(config: Any) -> str:
    """The same for a run file; ``dflash`` where it has no such config, which others will tell."""
    try:
        return backbone_of(resolve_draft(config))
    except UserError:
        return BACKBONES["DFlashDraftModel"]
