"""What a drafter's weights depend on and its shapes do not show."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from specforge.training.model_loading import load_draft_config_source

from specforge_dstill.errors import UserError


def check_same_drafter(
    source: str, other: Mapping[str, Any], own: Mapping[str, Any], *, learns: bool = True
) -> None:
    """Compare what a drafter was trained as, ``other``, with the run's own: shapes do not tell.

    Reading other target layers than it was trained on costs acceptance in silence, so that is
    refused. Another mask token or block size can be learned, so that is a warning.

    Args:
        learns: whether the drafter is trained further. If not, another mask token is refused, too.

    Raises: ``UserError`` for other target layers, or another mask token.
    """
    layers = "target_layer_ids"
    if other[layers] and own[layers] and other[layers] != own[layers]:
        raise UserError(
            f"{source} was trained on target layers {other[layers]}, the draft config names "
            f"{own[layers]}; use the drafter's own config.json, and a cache of those layers"
        )
    for name in ("mask_token_id", "block_size"):
        if None in (own[name], other[name]) or own[name] == other[name]:
            continue
        told = f"{source} was trained with {name} {other[name]}, this run has {own[name]}"
        if name == "mask_token_id" and not learns:
            raise UserError(
                f"{told}; set dflash_config.{name} in the draft config to {other[name]}, and "
                f"model.{name} in the run file where it is set"
            )
        warnings.warn(told, stacklevel=2)


def identity_of(config: Any) -> dict[str, Any]:
    """As a draft config names it."""
    method = getattr(config, "dflash_config", None) or {}
    return {
        "target_layer_ids": list(method.get("target_layer_ids") or []),
        "mask_token_id": method.get("mask_token_id"),
        "block_size": getattr(config, "block_size", None),
    }


def published_identity(source: str, model: Any) -> dict[str, Any]:
    """What a published folder says in its own config. Raises: those of reading it.

    Args:
        model: SpecForge's ``model:`` section, for ``cache_dir`` and ``trust_remote_code``.
    """
    return identity_of(
        load_draft_config_source(
            source, cache_dir=model.cache_dir, trust_remote_code=model.trust_remote_code
        )
    )


def recorded_identity(state: Mapping[str, Any]) -> dict[str, Any]:
    """What SpecForge's modes, and ours, write beside the weights of a run's checkpoint."""
    strategy = state["strategy"]
    prefix = "dstill" if strategy.startswith("dstill_") else strategy
    # Ours count positions where a draft config counts slots, so the block size is left out.
    return {
        "target_layer_ids": list(state.get(f"{prefix}_target_layer_ids") or []),
        "mask_token_id": state.get(f"{prefix}_mask_token_id"),
        "block_size": None if prefix == "dstill" else state.get(f"{prefix}_block_size"),
    }
