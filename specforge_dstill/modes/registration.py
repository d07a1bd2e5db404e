"""The three modes as SpecForge algorithms, made from DFlash's own registration.

What a mode shares with DFlash (draft architecture, capture layers and keys, normalisation,
streaming contract) is DFlash's provider itself; what differs is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from specforge.algorithms.builtin import builtin_algorithm_registry
from specforge.algorithms.common.defaults import no_missing_checkpoint_keys
from specforge.algorithms.common.providers import (
    AlgorithmProviders,
    StepProvider,
    make_registration,
)
from specforge.algorithms.contracts import AlgorithmSpec, FeatureMode
from specforge.algorithms.dflash.providers import algorithm_providers, algorithm_spec
from specforge.algorithms.registry import AlgorithmRegistration, AlgorithmRegistry
from torch import nn

from specforge_dstill.errors import UserError
from specforge_dstill.mode_names import DSTILL_MODES
from specforge_dstill.modes.agreement import agreed
from specforge_dstill.modes.assembly import build_drafter
from specforge_dstill.modes.block_step import BlockStep
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


def registry(options: DstillOptions) -> AlgorithmRegistry:
    """SpecForge's five modes and our three, bound to a run's options."""
    catalogue = builtin_algorithm_registry()
    for mode in DSTILL_MODES:
        catalogue = catalogue.with_registration(_registration(mode, options))
    return catalogue


def _registration(mode: str, options: DstillOptions) -> AlgorithmRegistration:
    return make_registration(_spec(mode, options), _providers(mode, options))


def _spec(mode: str, options: DstillOptions) -> AlgorithmSpec:
    spec = algorithm_spec()
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


def _providers(mode: str, options: DstillOptions) -> AlgorithmProviders:
    dflash = algorithm_providers()
    offline = tuple(
        replace(
            provider,
            build_reader=reader_for(mode),
            build_normalizer=normalizer_for(provider.build_normalizer),
            build_collator=collator,
        )
        for provider in dflash.offline
    )
    streaming = tuple(
        replace(provider, build_collator=collator) for provider in dflash.server_streaming
    )

    source = _Source(options)

    def build_training_model(config: Any, draft: Any, draft_config: Any, *rest: Any) -> Any:
        parts = build_drafter(config, draft, draft_config, *rest, mode=mode, options=options)
        if mode == "dstill_student":
            agreed(lambda: source.find(config, draft_config, parts.model))
        return parts

    return replace(
        dflash,
        algorithm_name=mode,
        step=_step_provider(mode, options, source),
        model=replace(
            dflash.model, build_draft=build_draft, build_training_model=build_training_model
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


def _step_provider(mode: str, options: DstillOptions, source: _Source) -> StepProvider:
    """How a step is built, and what a resumed run must share with the run that it continues."""
    section = mode.removeprefix("dstill_")

    def step_options(config: Any) -> dict[str, Any]:
        return {
            **options.contract(section),
            "seed": config.training.seed,
            "num_anchors": config.training.num_anchors,
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


def _builder(mode: str, options: DstillOptions, source: _Source) -> Callable[..., Any]:
    def build(model: nn.Module, *, seed: int, num_anchors: int, **_: Any) -> Any:
        step = BlockStep(model, options)
        if mode == "dstill_student":
            return student_strategy(step, source.records, num_anchors=num_anchors, seed=seed)
        return teacher_strategy(step, num_anchors=num_anchors, seed=seed)

    return build
