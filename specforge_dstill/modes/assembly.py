"""Building the drafter of a mode for SpecForge, after everything that must fit was checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from specforge.algorithms.model_providers import AlgorithmModelParts, build_dflash_model
from specforge.modeling.auto import AutoDraftModel
from specforge.modeling.target.target_utils import TargetEmbeddingsAndHead, target_vocab_size
from torch import distributed

from specforge_dstill.data.cache_check import check_cache
from specforge_dstill.data.draft_config import backbone_of, known_mask, resolve_draft
from specforge_dstill.data.target_identity import config_hash, weights_fingerprint
from specforge_dstill.modes.agreement import agreed
from specforge_dstill.modes.checkpoints import load_draft_weights, warn_of_other_teacher
from specforge_dstill.modes.checks import (
    check_options,
    check_top_k,
    warn_of_vocabulary,
)
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.feature_source import features_of
from specforge_dstill.modes.target_scales import as_target_embeds, logit_softcap
from specforge_dstill.options import DstillOptions


def build_drafter(
    config: Any,
    draft: Any,
    draft_config: Any,
    target_config: Any,
    input_tools: Any,
    *,
    mode: str,
    options: DstillOptions,
) -> AlgorithmModelParts:
    """The ``build_training_model`` hook of our modes.

    SpecForge's DFlash builder resolves the mask token and loads the target's embeddings and head;
    its model is then exchanged for a :class:`BlockDrafter` over the same parts.
    """
    check_options(config, options, mode=mode, draft_config=draft_config)
    if mode == "dstill_collect":
        warn_of_other_teacher(config.model.draft_checkpoint_path)
    if config.mode == "offline":
        folder = config.data.hidden_states_path
        agreed(lambda: check_features(folder, config, draft, target_config))
    parts = build_dflash_model(config, draft, draft_config, target_config, input_tools)
    drafter = BlockDrafter(
        draft,
        lm_head=parts.model.lm_head,
        embed_tokens=as_target_embeds(parts.model.embed_tokens, target_config),
        mask_token_id=parts.model.mask_token_id,
        attention_backend=config.training.attention_backend,
        blocks_per_group=options.blocks_per_group,
        logit_softcap=logit_softcap(target_config),
    )
    warn_of_vocabulary(drafter)
    if mode == "dstill_collect" or (mode == "dstill_student" and options.online):
        check_top_k(options, vocab_size=drafter.lm_head.weight.shape[0])
    return replace(parts, model=drafter)


def list_samples(folder: str) -> list[str]:
    """The sample ids of a cache, in SpecForge's order."""
    from specforge.runtime.data_plane.offline_reader import list_feature_files

    from specforge_dstill.modes.feature_source import relative_id

    return [relative_id(folder, path) for path in list_feature_files(folder)]


def check_features(folder: str, config: Any, draft: Any, target_config: Any) -> None:
    """Look at every file of a cache once, each rank at its share. UserError for what is wrong."""
    joined = distributed.is_available() and distributed.is_initialized()
    rank = distributed.get_rank() if joined else 0
    layers = [int(layer) for layer in draft.target_layer_ids]
    check_cache(
        Path(folder),
        required_keys=features_of(backbone_of(draft.config)),
        width=len(layers) * int(draft.config.hidden_size),
        layers=layers,
        max_length=config.data.max_length,
        vocab_size=target_vocab_size(target_config),
        dtype=getattr(torch, config.model.torch_dtype),
        target_hash=config_hash(target_config),
        # The first rank compares it, and alone reads it.
        target_weights="" if rank else weights_fingerprint(config.model.target_model_path) or "",
        rank=rank,
        world_size=distributed.get_world_size() if joined else 1,
    )


def load_drafter(
    config: Any, checkpoint: str, *, device: torch.device, blocks_per_group: int = 8
) -> BlockDrafter:
    """A drafter for evaluation: SpecForge's class, trained weights, the target's frozen parts.

    Args:
        config: SpecForge's config of the run file: target, draft config, dtype.
        checkpoint: see :func:`load_draft_weights`.

    Returns:
        The drafter in evaluation mode on ``device``.
    """
    model = config.model
    draft_config = resolve_draft(config)
    draft = AutoDraftModel.from_config(draft_config, torch_dtype=getattr(torch, model.torch_dtype))
    load_draft_weights(draft, checkpoint, draft_config, model)
    mask_token_id = draft.mask_token_id if model.mask_token_id is None else model.mask_token_id
    return beside_target(
        draft,
        model,
        mask_token_id=known_mask(mask_token_id),
        device=device,
        blocks_per_group=blocks_per_group,
    )


def beside_target(
    draft: Any,
    model: Any,
    *,
    mask_token_id: int,
    device: torch.device,
    blocks_per_group: int = 8,
) -> BlockDrafter:
    """A draft model with its target's embeddings and head, in evaluation mode on ``device``.

    Args:
        draft: SpecForge's; its dtype is the target's parts', too.
        model: SpecForge's ``model:`` section, which names the target.
    """
    frozen = TargetEmbeddingsAndHead.from_pretrained(
        model.target_model_path,
        embed_key=model.embedding_key,
        lm_head_key=model.lm_head_key,
        cache_dir=model.cache_dir,
        device=str(device),
        dtype=next(draft.parameters()).dtype,
        trust_remote_code=model.trust_remote_code,
    )
    return BlockDrafter(
        draft.to(device),
        lm_head=frozen.lm_head,
        embed_tokens=as_target_embeds(frozen.embed_tokens, frozen.config),
        mask_token_id=mask_token_id,
        blocks_per_group=blocks_per_group,
        logit_softcap=logit_softcap(frozen.config),
    ).eval()
