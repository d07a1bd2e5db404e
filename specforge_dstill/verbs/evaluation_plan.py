"""What an evaluation measures, by whatever route: checked before anything heavy is loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import torch

from specforge_dstill.data import chat, targets
from specforge_dstill.data.capture_plan import CapturePlan
from specforge_dstill.data.chat_templates import OWN_TEMPLATE, template_hash
from specforge_dstill.data.conversations import Prompt
from specforge_dstill.data.generation import Decoding
from specforge_dstill.data.generation_config import unheeded_settings
from specforge_dstill.data.manifest import CacheManifest
from specforge_dstill.data.target_identity import config_hash, weights_fingerprint
from specforge_dstill.data.template_day import stopped_clock
from specforge_dstill.data.versions import library_versions
from specforge_dstill.errors import UserError
from specforge_dstill.maths.reveal_schedule import check_steps
from specforge_dstill.modes.assembly import load_drafter
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.runfile import RunFile, load_run
from specforge_dstill.verbs.evaluation_inputs import (
    DrafterChoice,
    MeasuredDraft,
    check_checkpoint,
    check_distinct,
    prompts_told,
    resolved,
)
from specforge_dstill.verbs.run_facts import block_size, cache_settings, feature_cache


@dataclass(frozen=True)
class EvaluationPlan:
    """Run file, data sets and drafters of an evaluation.

    Attributes:
        drafters: each with its numbers of passes.
    """

    args: argparse.Namespace
    run: RunFile
    capture: CapturePlan
    block_size: int
    drafters: tuple[tuple[DrafterChoice, tuple[int, ...]], ...]

    @classmethod
    def of(cls, args: argparse.Namespace) -> EvaluationPlan:
        """Check the command line against the run file and the disk."""
        if not args.drafter:
            raise UserError("name a drafter: --drafter NAME=CHECKPOINT")
        for chosen in args.drafter:
            if not chosen.checkpoint:
                raise UserError(
                    f"--drafter {chosen.name!r}: a drafter is NAME=CHECKPOINT; a bare name is for "
                    "--server"
                )
        check_distinct("--prompts", [chosen.name for chosen in args.prompts])
        check_distinct("--drafter", [chosen.name for chosen in args.drafter])
        run_file = load_run(args.config, args.overrides, "dflash")
        size = block_size(run_file)
        default = args.steps or tuple(dict.fromkeys((1, run_file.options.steps)))
        drafters = tuple((chosen, chosen.steps or default) for chosen in args.drafter)
        for chosen, passes in drafters:
            for steps in passes:
                try:
                    check_steps(size, steps)
                except ValueError as error:
                    raise UserError(f"--drafter {chosen.name} at {steps} passes: {error}") from None
            check_checkpoint(chosen)
        return cls(args, run_file, CapturePlan.of(run_file), size, drafters)

    @property
    def target(self) -> str:
        return str(self.run.config.model.target_model_path)

    @property
    def data_sets(self) -> tuple[str, ...]:
        """Their names: of prompts, or of captures."""
        return tuple(chosen.name for chosen in self.args.prompts or self.args.captured)

    @property
    def device(self) -> str:
        return self.args.device or targets.default_device()

    @cached_property
    def prompts(self) -> dict[str, list[Prompt]]:
        """By data set."""
        return {s.name: s.prompts(limit=self.args.limit) for s in self.args.prompts}

    @property
    def _trusted(self) -> bool:
        """Whether the target's own code may run."""
        return self.run.config.model.trust_remote_code

    @cached_property
    def tokenizer(self) -> Any:
        """The target's."""
        return targets.load_tokenizer(self.target, trust_remote_code=self._trusted)

    @cached_property
    def decoding(self) -> Decoding:
        """Where an answer ends."""
        return Decoding(
            stop_ids=chat.stop_token_ids(
                self.target, self.tokenizer, trust_remote_code=self._trusted
            ),
            max_new_tokens=self.args.max_new_tokens,
            max_positions=targets.max_positions(self.capture.target_config),
        )

    @cached_property
    def unheeded(self) -> dict[str, Any]:
        """What of the target's generation config our decoding leaves aside, by its name."""
        if self.args.captured:  # a server's answers
            return {}
        return unheeded_settings(self.target, sampled=bool(self.args.temperature))

    @cached_property
    def template_kwargs(self) -> dict[str, Any]:
        """For the chat template: those given, else those of the feature cache."""
        if self.args.template_kwargs is not None:
            return dict(self.args.template_kwargs)
        return self._cache.template_kwargs if self._cache else {}

    @cached_property
    def template_variables(self) -> dict[str, Any]:
        """What the chat template gets: ``template_kwargs``, and the feature cache's day."""
        return self.template_kwargs | stopped_clock(self._cache.template_day if self._cache else "")

    @cached_property
    def chat_template(self) -> str:
        """The hash of the target's own."""
        return template_hash(self.tokenizer, OWN_TEMPLATE)

    @cached_property
    def _cache(self) -> CacheManifest | None:
        return feature_cache(self.run)

    def load_target(self) -> Any:
        """The target, a transformers model."""
        return targets.load_model(
            self.target,
            dtype=self.args.dtype,
            device=self.device,
            attn_implementation=self.args.attn_implementation,
            trust_remote_code=self._trusted,
        )

    def load_drafter(self, chosen: DrafterChoice) -> BlockDrafter:
        """A drafter with the target's embeddings and head."""
        config = self.run.config
        model = config.model.model_copy(update={"torch_dtype": self.args.dtype})
        # SpecForge tells on stdout what it loads; that is for the table.
        with redirect_stdout(sys.stderr):
            return load_drafter(
                config.model_copy(update={"model": model}),
                chosen.checkpoint,
                device=torch.device(self.device),
                blocks_per_group=self.run.options.blocks_per_group,
            )

    def answer_settings(self) -> dict[str, Any]:
        """What decides the target's answers; kept beside them."""
        return {
            "target": self.target,
            "target_config": config_hash(self.capture.target_config),
            "target_weights": weights_fingerprint(self.target) or self.target,
            "target_layer_ids": list(self.capture.layers),
            "dtype": self.args.dtype,
            "attn_implementation": self.args.attn_implementation,
            "chat_template": self.chat_template,
            "template_kwargs": self.template_kwargs,
            "stop_token_ids": list(self.decoding.stop_ids),
            "max_new_tokens": self.decoding.max_new_tokens,
            "versions": library_versions("transformers", "torch"),
        }

    def details(
        self, drafts: Mapping[str, MeasuredDraft], left_out: Mapping[str, Any]
    ) -> dict[str, Any]:
        """How the results were made, whatever the route.

        Args:
            drafts: of each drafter, by name.
            left_out: the prompts without an answer, by data set.
        """
        args = self.args
        return {
            "run_file": self.run.path,
            "overrides": list(args.overrides),
            "target": self.target,
            "draft_config": self.run.config.model.draft_model_config,
            "dtype": args.dtype,
            "device": self.device,
            "max_new_tokens": args.max_new_tokens,
            **({"generation_config_unheeded": self.unheeded} if self.unheeded else {}),
            "chat_template": self.chat_template,
            "template_kwargs": self.template_kwargs,
            "cache": cache_settings(self._cache),
            "date": datetime.now(UTC).isoformat(sep=" ", timespec="minutes"),
            "prompts": prompts_told(args.prompts, self.prompts, limit=args.limit),
            "left_out": dict(left_out),
            "checkpoints": {
                chosen.name: {
                    "path": chosen.checkpoint,
                    "resolved": resolved(chosen.checkpoint),
                    **asdict(drafts[chosen.name]),
                }
                for chosen, _ in self.drafters
            },
            "versions": library_versions("specforge", "transformers", "torch"),
        }
