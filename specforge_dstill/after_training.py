"""``dstill.collect.after_training``: the collection that follows a teacher's training."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from specforge_dstill.errors import UserError
from specforge_dstill.inputs import check_inputs
from specforge_dstill.machine import check_attention
from specforge_dstill.options import ONLINE
from specforge_dstill.runfile import RunFile, load_run
from specforge_dstill.store_place import check_place

OPTION = "dstill.collect.after_training"


def collection_of(run: RunFile, overrides: Sequence[str], *, teacher: str | None = None) -> RunFile:
    """The run that ``--mode dstill_collect`` would be, of the same file and words.

    Args:
        run: the teacher's.
        overrides: its words on the command line.
        teacher: the checkpoint to collect with; None while there is none yet.
    """
    last = (f"model.draft_checkpoint_path={teacher or 'null'}", "training.resume_from=null")
    return load_run(run.path, (*overrides, *last), "dstill_collect")


def check_collection(collection: RunFile, *, resumed: bool) -> None:
    """UserError for what would stop the collection, before the training that it follows.

    The teacher is known by its weights, which do not exist yet: a store that is there already is
    of another one. Only a training that is gone on with may have ended, and collected, before.

    Args:
        resumed: the training is gone on with (training.resume_from).
    """
    from specforge_dstill.modes.shard_callback import shard_callback

    if collection.options.online:
        raise UserError(
            f"{OPTION}: dstill.trajectories is {ONLINE}, so there is nothing to collect; "
            "leave one of the two out"
        )
    if not collection.config.data.hidden_states_path:
        raise UserError(
            f"{OPTION} needs a feature cache in data.hidden_states_path: records are joined to "
            "it by sample, and this run streams its features"
        )
    check_inputs(collection.config)
    check_attention(collection)
    _check_settings(collection)
    on_shard = collection.options.collect.on_shard
    if on_shard is not None:
        shard_callback(on_shard)
    check_place(collection, unused=not resumed)


def _check_settings(collection: RunFile) -> None:
    """What the collection itself checks while its model is built, of a teacher yet to come."""
    from specforge_dstill.data.draft_config import resolve_draft
    from specforge_dstill.data.target_identity import TargetShape
    from specforge_dstill.data.targets import load_config
    from specforge_dstill.modes.checks import check_options, check_top_k

    config, options = collection.config, collection.options
    last = latest_checkpoint(config.output_dir, config.run_id)
    model = config.model.model_copy(update={"draft_checkpoint_path": last})
    check_options(
        config.model_copy(update={"model": model}),
        options,
        mode=collection.mode,
        draft_config=resolve_draft(config),
    )
    target = load_config(model.target_model_path, trust_remote_code=model.trust_remote_code)
    check_top_k(options, vocab_size=TargetShape.of(target).vocab_size)


def latest_checkpoint(output_dir: str, run_id: str) -> str:
    """Where a run that ended has its last weights."""
    return f"{output_dir}/{run_id}-latest"


def release_memory() -> None:
    """Give back what the training held: its optimizer is larger than what a collection needs."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
