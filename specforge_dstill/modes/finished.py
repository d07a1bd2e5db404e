"""Whether a collection is done already, told from little: no feature file is read."""

from __future__ import annotations

from typing import Any

from torch import distributed

from specforge_dstill.data.draft_config import resolve_draft
from specforge_dstill.data.manifest import cache_digest
from specforge_dstill.data.target_identity import TargetShape
from specforge_dstill.data.targets import load_config
from specforge_dstill.errors import UserError
from specforge_dstill.maths.block_shape import BlockShape
from specforge_dstill.modes.assembly import list_samples
from specforge_dstill.modes.checkpoints import build_draft, weights_hash
from specforge_dstill.modes.checks import expected_draft_config
from specforge_dstill.options import DstillOptions
from specforge_dstill.trajectory_store import (
    Manifest,
    TrajectoryReader,
    TrajectoryStore,
    open_store,
)
from specforge_dstill.trajectory_store.identity import samples_hash
from specforge_dstill.trajectory_store.reader import ShardedStore
from specforge_dstill.trajectory_store.writer import remove_leftovers


def finished(config: Any, options: DstillOptions) -> Manifest | None:
    """The manifest of the run's store if it is complete and of this teacher, cache and options.

    The first rank looks, and every rank hears the same. Where anything differs or is in doubt the
    answer is None: the collection itself says what is wrong.
    """
    found = [_look(config, options) if distributed.get_rank() == 0 else None]
    distributed.broadcast_object_list(found, src=0)
    return found[0]


def _look(config: Any, options: DstillOptions) -> Manifest | None:
    try:
        store = open_store(options.trajectories)
        if isinstance(store, ShardedStore) and not store.in_order():
            return None
        store.check(**_cheap_settings(config, options))
        draft: Any = build_draft(config, resolve_draft(config))
        store.check(**_settings_of(draft, config, store))
    except UserError:
        return None
    if isinstance(store, TrajectoryStore):
        # A run that was killed between the manifest and its last words left them.
        remove_leftovers(store.folder)
    return store.manifest


def _settings_of(draft: Any, config: Any, store: TrajectoryReader) -> dict[str, Any]:
    """What is known once the drafter is there; of the target no more than its config is read."""
    model = config.model
    target = load_config(model.target_model_path, trust_remote_code=model.trust_remote_code)
    mask = draft.mask_token_id if model.mask_token_id is None else model.mask_token_id
    # SpecForge completes the drafter's config so when it builds a model around it.
    method = getattr(draft.config, "dflash_config", None) or {}
    own = {"mask_token_id": mask, "target_layer_ids": list(draft.target_layer_ids)}
    draft.config.dflash_config = {**method, **own}
    shape = BlockShape.of(draft.config.to_dict())
    return {
        "teacher_hash": weights_hash(draft),
        "block_size": shape.positions,
        "prediction_shift": shape.shift,
        "vocab_size": TargetShape.of(target).vocab_size,
        "mask_token_id": mask,
        "draft_config": expected_draft_config(store, draft.config),
    }


def _cheap_settings(config: Any, options: DstillOptions) -> dict[str, Any]:
    """What is known of the store to be made before anything is loaded."""
    collect = options.collect
    sample_ids = list_samples(config.data.hidden_states_path)
    return {
        "steps": options.steps,
        "top_k": collect.top_k,
        "record": collect.record,
        "commit": collect.commit,
        "temperature": collect.temperature,
        "max_length": config.data.max_length,
        "anchors_per_sample": collect.anchors_per_sample,
        "seed": config.training.seed,
        "samples": len(sample_ids),
        "samples_hash": samples_hash(sample_ids),
        "shard_size": collect.shard_size,
        "logp_dtype": collect.logp_dtype,
        "cache": cache_digest(config.data.hidden_states_path),
    }
