"""What must fit together before a mode starts: options, drafter, cache and trajectory store."""

from __future__ import annotations

import warnings
from typing import Any

from specforge_dstill.data.draft_config import backbone_of, check_mask
from specforge_dstill.data.manifest import cache_digest
from specforge_dstill.errors import UserError
from specforge_dstill.maths.block_shape import BlockShape
from specforge_dstill.maths.reveal_schedule import check_steps
from specforge_dstill.modes.checkpoints import weights_hash
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.options import TEACHER_OPTION, DstillOptions
from specforge_dstill.trajectory_store import TrajectoryReader

# SpecForge's options of the DFlash objective, and what takes their place in our modes.
REPLACED_OPTIONS = {
    "loss_decay_gamma": (None, "dstill.teacher.position_decay"),
    "loss_type": ("dflash", "the objective of the mode itself"),
}

#: What a draft config says of the drafter alone, and no version of transformers adds to it.
_DRAFTERS_OWN = ("is_causal",)


def check_options(config: Any, options: DstillOptions, *, mode: str, draft_config: Any) -> None:
    """Refuse options that do not fit the drafter or the mode, before anything heavy is loaded."""
    check_mask(config, draft_config)
    dropout = getattr(draft_config, "attention_dropout", 0.0)
    if dropout:
        raise UserError(
            f"{config.model.draft_model_config}: attention_dropout is {dropout}; blocks attend "
            "without dropout: set it to 0"
        )
    try:
        check_steps(BlockShape.of(draft_config.to_dict()).positions, options.steps)
    except ValueError as error:
        raise UserError(f"dstill.steps: {error}") from error
    for name, (default, replacement) in REPLACED_OPTIONS.items():
        if getattr(config.training, name) != default:
            raise UserError(
                f"training.{name} belongs to --mode dflash and would be ignored by {mode}; "
                f"move it under modes: dflash: training:, its place is taken by {replacement}"
            )
    if options.student.l1_alpha and backbone_of(draft_config) != "dspark":
        raise UserError(
            "dstill.student.l1_alpha: a DFlash drafter's features do not hold the target's "
            "distributions; leave it out"
        )
    _check_checkpoints(config, options, mode=mode)


def _check_checkpoints(config: Any, options: DstillOptions, *, mode: str) -> None:
    """Refuse a mode without the checkpoints that it is made from, or without its store."""
    if mode == "dstill_collect" and options.online:
        raise UserError(
            "dstill.trajectories: online has no store to collect into; run --mode dstill_student "
            "without collecting, or name a folder"
        )
    if mode == "dstill_student" and options.online and not options.student.teacher:
        raise UserError(
            "dstill.trajectories: online needs the teacher in every run: set "
            f"{TEACHER_OPTION} (or model.draft_checkpoint_path) to the output folder of "
            "--mode dstill_teacher"
        )
    starts = config.model.draft_checkpoint_path or config.training.resume_from
    if mode == "dstill_collect" and not config.model.draft_checkpoint_path:
        raise UserError(
            "dstill_collect needs a trained teacher: set model.draft_checkpoint_path to the "
            "output folder of --mode dstill_teacher"
        )
    if mode == "dstill_student" and not starts:
        raise UserError(
            "dstill_student starts from its teacher: set model.draft_checkpoint_path to the "
            "output folder of --mode dstill_teacher (or training.resume_from to go on)"
        )


def warn_of_vocabulary(drafter: BlockDrafter) -> None:
    """Warn when the draft config's vocabulary is not the target's, whose head is used anyway."""
    stated, head = drafter.draft_model.config.vocab_size, drafter.lm_head.weight.shape[0]
    if stated != head:
        warnings.warn(
            f"the draft config has vocab_size {stated}, the target's head has {head} tokens; "
            "training is not harmed, an engine that reads the config may be",
            stacklevel=2,
        )


def check_top_k(options: DstillOptions, *, vocab_size: int) -> None:
    """Refuse to retain more ids than there are tokens that can be predicted."""
    legal = vocab_size - 1
    if options.collect.top_k > legal:
        raise UserError(
            f"dstill.collect.top_k is {options.collect.top_k}, but the vocabulary has only "
            f"{legal} tokens besides the mask; make it {legal} or less"
        )


def check_store(
    store: TrajectoryReader, config: Any, options: DstillOptions, drafter: BlockDrafter
) -> None:
    """Refuse a store that was made for another drafter, vocabulary, length, cache or teacher."""
    expected: dict[str, Any] = {
        "block_size": drafter.shape.positions,
        "prediction_shift": drafter.shape.shift,
        "steps": options.steps,
        "vocab_size": drafter.lm_head.weight.shape[0],
        "mask_token_id": drafter.mask_token_id,
        "max_length": config.data.max_length,
        "draft_config": expected_draft_config(store, drafter.draft_model.config),
        "cache": cache_digest(config.data.hidden_states_path),
    }
    if config.model.draft_checkpoint_path:
        # The student has just been initialised from the checkpoint: its weights are the teacher's.
        expected["teacher_hash"] = weights_hash(drafter.draft_model)
    store.check(**expected)


def expected_draft_config(store: TrajectoryReader, config: Any) -> dict[str, Any]:
    """A drafter's configuration as the store of a teacher of that configuration has it.

    A version of transformers is no reason to refuse a store. Another one writes other defaults
    down, so that only what both write is compared.
    """
    ours, theirs = config.to_diff_dict(), store.identity.draft_config
    version = theirs.get("transformers_version")
    if ours.get("transformers_version") == version:
        return dict(ours)
    common = {name: ours.get(name, value) for name, value in theirs.items()}
    # No version writes these for its own sake: absent from one of the two, they differ.
    own = {name: ours.get(name) for name in _DRAFTERS_OWN if name in ours or name in theirs}
    return {**common, **own, "transformers_version": version}


def check_samples(store: TrajectoryReader, sample_ids: list[str]) -> None:
    """Refuse a store that lacks a sample of the cache."""
    absent = [sample_id for sample_id in sample_ids if sample_id not in store]
    if absent:
        raise UserError(
            f"trajectory store {store.uri} has no record of {len(absent)} of the cache's "
            f"{len(sample_ids)} samples (first: {absent[0]}); run --mode dstill_collect on this "
            "cache, or train on the cache that the store was collected from"
        )
