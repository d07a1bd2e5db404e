"""Evaluation while training, by block acceptance.

SpecForge's trainer evaluates every ``training.eval_interval`` steps, logs what that returns and
keeps the best checkpoint by one of the numbers. All that stays; only the numbers are ours: for
block drafters SpecForge's are plain accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from specforge.runtime.contracts import TrainBatch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)

from specforge_dstill.data.draft_config import resolve_draft
from specforge_dstill.data.held_out import compare_held_out
from specforge_dstill.data.targets import load_config
from specforge_dstill.errors import UserError
from specforge_dstill.maths.block_shape import BlockShape
from specforge_dstill.maths.reveal_schedule import check_steps
from specforge_dstill.modes.agreement import agreed
from specforge_dstill.modes.assembly import check_features, list_samples
from specforge_dstill.modes.best_checkpoint import best_keeper, metric
from specforge_dstill.modes.checkpoints import FAMILY, build_draft
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.held_out import HeldOutBlocks
from specforge_dstill.options import DstillOptions


@dataclass(frozen=True)
class BlockEvaluation:
    """What the trainer calls in the place of its own evaluation.

    The drafter that is scored is a copy, in evaluation mode, with weights of its own: what trains
    is only read, and no pass of a sharded model has to be kept in step between ranks.

    Attributes:
        strategy: SpecForge's, which knows the trained module and its draft's part.
        samples: how many the held-out cache has.
    """

    strategy: Any
    blocks: HeldOutBlocks
    samples: int

    @torch.no_grad()
    def __call__(self, data: Iterable[TrainBatch] | None) -> dict[str, float]:
        """``eval/tau_P`` for each number of passes P; the same on every rank. Collective."""
        weights = full_weights(self.strategy.trainable_module())
        drafter = self.blocks.drafter
        drafter.draft_model.load_state_dict(self.strategy.checkpoint_state_filter(weights))
        del weights
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        sums = torch.zeros(0)

        def score() -> None:
            nonlocal sums
            sums = self.blocks.over(data or (), rank=rank, ranks=ranks, samples=self.samples)

        agreed(score)
        sums = sums.to(drafter.lm_head.weight.device)
        distributed.all_reduce(sums)
        totals = zip(self.blocks.passes, sums.tolist(), strict=True)
        return {metric(steps): total / count for steps, (total, count) in totals}


def evaluate_in_training(trainer: Any, config: Any, options: DstillOptions) -> str | None:
    """Have a run's evaluations score blocks, and its best checkpoint be the best by them.

    Args:
        trainer: SpecForge's, assembled, of a mode in ``FAMILY``; others are left alone.
        config: SpecForge's, of the run.

    Returns:
        A line that says what is scored; None for a run without evaluations.

    Raises: ``UserError`` for a held-out cache or options that do not fit the drafter.
    """
    mode = config.training.strategy
    if trainer is None or mode not in FAMILY:
        return None
    # SpecForge's Trainer takes neither an evaluation nor a checkpoint manager, its controller both.
    controller = trainer._controller
    best_by = options.best_by(mode)
    controller._checkpoint_mgr = best_keeper(config, passes=best_by)
    folder = config.data.eval_hidden_states_path
    if not folder:
        return None
    strategy = trainer.core.strategy
    model = strategy.trainable_module()
    _check(config, options, getattr(model, "module", model).draft_model)
    scored = HeldOutBlocks(
        drafter=_copy_of(model, config, options),
        passes=options.scored_passes,
        anchors_per_sample=options.evaluation.anchors_per_sample,
        rows_per_tile=options.rows_per_tile,
    )
    evaluation = BlockEvaluation(strategy, scored, samples=len(list_samples(folder)))
    controller.evaluate = evaluation
    every, steps = config.training.eval_interval, controller.max_steps or controller.total_steps
    if steps is not None and every > steps:
        return (
            f"nothing will be evaluated: training.eval_interval is {every}, and the run ends at "
            f"step {steps}"
        )
    return (
        f"every {every} steps blocks of {evaluation.samples} held-out "
        f"sample(s), up to {scored.anchors_per_sample} of each, are drafted in "
        f"{' and '.join(map(str, scored.passes))} pass(es); the best checkpoint by "
        f"{metric(best_by)}: {config.output_dir}/{config.run_id}-best"
    )


def _check(config: Any, options: DstillOptions, draft: Any) -> None:
    """UserError for passes that no block has, or a cache of other layers; warnings."""
    positions = BlockShape.of(draft.config.to_dict()).positions
    for steps in options.scored_passes:
        try:
            check_steps(positions, steps)
        except ValueError as error:
            raise UserError(f"dstill.evaluation.passes: {error}") from error
    folder, model = config.data.eval_hidden_states_path, config.model
    target = load_config(model.target_model_path, trust_remote_code=model.trust_remote_code)
    agreed(lambda: check_features(folder, config, draft, target))
    if distributed.get_rank() == 0:
        compare_held_out(Path(config.data.hidden_states_path), Path(folder))


def _copy_of(model: nn.Module, config: Any, options: DstillOptions) -> BlockDrafter:
    """A drafter like the one in training, over the same frozen embeddings and head."""
    inner: Any = getattr(model, "module", model)
    fresh = config.model.model_copy(update={"draft_checkpoint_path": None})
    # Weights are drawn only to be replaced; training's own draws must not move for that.
    with torch.random.fork_rng(devices=[]):
        draft_config = resolve_draft(config)
        draft = build_draft(config.model_copy(update={"model": fresh}), draft_config)
    return BlockDrafter(
        draft.requires_grad_(False),
        lm_head=inner.lm_head,
        embed_tokens=inner.embed_tokens,
        mask_token_id=inner.mask_token_id,
        attention_backend=config.training.attention_backend,
        blocks_per_group=options.blocks_per_group,
        logit_softcap=getattr(inner, "logit_softcap", None),
    ).eval()


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state of a module on every rank, whole, whatever it is wrapped in. Collective."""
    if not isinstance(model, FullyShardedDataParallel):
        return getattr(model, "module", model).state_dict()
    whole = FullStateDictConfig(offload_to_cpu=False, rank0_only=False)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
        return model.state_dict()
