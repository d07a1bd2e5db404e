"""The three modes as SpecForge algorithms, made from the registration of the drafter's own mode.

What a mode shares with SpecForge's dflash or dspark (draft architecture, capture layers and keys,
normalisation, streaming contract) is that mode's provider itself; what differs is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from specforge.algorithms.builtin import builtin_algorithm_registry
from specforge.algorithms.common.defaults import no_missing_checkpoint_keys
from specforge.algorithms.common.providers import (
    AlgorithmProviders,
    StepProvider,
    make_registration,
)
from specforge.algorithms.contracts import AlgorithmSpec, FeatureMode
from specforge.algorithms.registry import AlgorithmRegistration, AlgorithmRegistry
from torch import nn

from specforge_dstill.errors import UserError
from specforge_dstill.mode_names import DSTILL_MODES
from specforge_dstill.modes.agreement import agreed
from specforge_dstill.modes.assembly import build_drafter
from specforge_dstill.modes.block_step import BlockStep, Shares
from specforge_dstill.modes.checkpoints import build_draft
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.feature_source import collator, normalizer_for, reader_for
from specforge_dstill.modes.records import RecordSource, record_source
from specforge_dstill.modes.student import student_strategy
from specforge_dstill.modes.teacher import teacher_strategy
from specforge_dstill.options import DstillOptions


def streams(mode: str, options: DstillOptions) -> bool:
    """Whether a mode can learn from features as a capture server streams them.

    A collection and a student that reads one join records by sample, which needs a cache.
    """
    return mode == "dstill_teacher" or (mode == "dstill_student" and options.online)


def check_streaming(mode: str, options: DstillOptions) -> None:
    """UserError for a mode of ours that cannot run on streamed features, with what can."""
    if streams(mode, options):
        return
    what = "a trajectory store" if mode == "dstill_student" else "dstill_collect"
    raise UserError(
        f"{what} needs a feature cache, by whose samples its records are named, and this run "
        "streams its features: name a cache in data.hidden_states_path, or train the student "
        "without a store (dstill.trajectories: online)"
    )


def registry(options: DstillOptions, *, backbone: str = "dflash") -> AlgorithmRegistry:
    """SpecForge's five modes and our three, bound to a run's options.

    Args:
        backbone: SpecForge's mode for the run's drafter, ``dflash`` or ``dspark``.
    """
    catalogue = builtin_algorithm_registry()
    like = catalogue.resolve(backbone)
    for mode in DSTILL_MODES:
        catalogue = catalogue.with_registration(_registration(mode, options, like))
    return catalogue


def _registration(
    mode: str, options: DstillOptions, like: AlgorithmRegistration
) -> AlgorithmRegistration:
    return make_registration(_spec(mode, options, like.spec), _providers(mode, options, like))


def _spec(mode: str, options: DstillOptions, spec: AlgorithmSpec) -> AlgorithmSpec:
    contracts = tuple(
        contract
        for contract in spec.feature_contracts
        if contract.mode is FeatureMode.OFFLINE or streams(mode, options)
    )
    capabilities = spec.capabilities
    if mode == "dstill_collect":
        # flash-attn in two calls has no backward pass, and collection needs none.
        backends = capabilities.attention_backends | {"fa"}
        capabilities = replace(capabilities, attention_backends=backends)
    return replace(spec, name=mode, feature_contracts=contracts, capabilities=capabilities)


def _providers(
    mode: str, options: DstillOptions, like: AlgorithmRegistration
) -> AlgorithmProviders:
    own = like.providers
    offline = tuple(
        replace(
            provider,
            build_reader=reader_for(mode, backbone=like.name),
            build_normalizer=normalizer_for(provider.build_normalizer),
            build_collator=partial(collator, provider.build_collator),
        )
        for provider in own.offline
    )
    streaming = tuple(
        replace(provider, build_collator=partial(collator, provider.build_collator))
        for provider in own.server_streaming
    )

    source = _Source(options)

    def build_training_model(config: Any, draft: Any, draft_config: Any, *rest: Any) -> Any:
        parts = build_drafter(config, draft, draft_config, *rest, mode=mode, options=options)
        if mode == "dstill_student":
            agreed(lambda: source.find(config, draft_config, parts.model))
        return parts

    return replace(
        own,
        algorithm_name=mode,
        step=_step_provider(mode, options, source, backbone=like.name),
        model=replace(
            own.model, build_draft=build_draft, build_training_model=build_training_model
        ),
        offline=offline,
        server_streaming=streaming if streams(mode, options) else (),
    )


class _Source:
    """Where a student run's records come from: found once, with the drafter, for later hooks."""

    def __init__(self, options: DstillOptions) -> None:
        self._options = options
        self._found: RecordSource | None = None

    def find(self, config: Any, draft_config: Any, drafter: BlockDrafter) -> None:
        """Open the store, or load the teacher."""
        self._found = record_source(config, draft_config, drafter, self._options)

    @property
    def records(self) -> RecordSource:
        assert self._found is not None, "SpecForge builds the training model first"
        return self._found


def _step_provider(
    mode: str, options: DstillOptions, source: _Source, *, backbone: str
) -> StepProvider:
    """How a step is built, and what a resumed run must share with the run that it continues."""
    section = mode.removeprefix("dstill_")

    def step_options(config: Any) -> dict[str, Any]:
        return {
            **options.contract(section),
            "seed": config.training.seed,
            "num_anchors": config.training.num_anchors,
            **{name: getattr(config.training, name) for name in _shares_of(section, backbone)},
        }

    def resume_contract(_config: Any, draft: Any, drafter: Any) -> dict[str, Any]:
        contract: dict[str, Any] = {
            "dstill_block_size": drafter.shape.positions,
            "dstill_mask_token_id": drafter.mask_token_id,
            "dstill_target_layer_ids": tuple(draft.target_layer_ids),
        }
        if mode == "dstill_student":
            contract |= source.records.contract()
        return contract

    return StepProvider(
        build=_builder(mode, options, source),
        options=step_options,
        resume_contract=resume_contract,
        allowed_missing_checkpoint_keys=no_missing_checkpoint_keys,
        uses_external_target_head=False,
    )


def _shares_of(section: str, backbone: str) -> tuple[str, ...]:
    """SpecForge's options that weigh DSpark's losses in a stage.

    In Stage II Eq. 3 has a share of 1, and that of the L1 distance is an option of ours.
    """
    if backbone != "dspark":
        return ()
    confidence = "dspark_confidence_head_alpha"
    if section == "student":
        return (confidence,)
    return ("dspark_ce_loss_alpha", "dspark_l1_loss_alpha", confidence)


def _builder(mode: str, options: DstillOptions, source: _Source) -> Callable[..., Any]:
    def build(model: nn.Module, *, seed: int, num_anchors: int, **other: Any) -> Any:
        shares = Shares(
            likelihood=other.get("dspark_ce_loss_alpha", 1.0),
            l1=other.get("dspark_l1_loss_alpha", options.student.l1_alpha),
            confidence=other.get("dspark_confidence_head_alpha", 0.0),
        )
        step = BlockStep(model, options, shares)
        if mode == "dstill_student":
            return student_strategy(step, source.records, num_anchors=num_anchors, seed=seed)
        return teacher_strategy(step, num_anchors=num_anchors, seed=seed)

    return build
