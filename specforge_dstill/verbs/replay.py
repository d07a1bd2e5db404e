"""Exact greedy tau by replay: the target answers once, and every drafter walks its answers."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from specforge_dstill.data import chat, targets
from specforge_dstill.data.answer_folder import AnswerFolder
from specforge_dstill.data.capture_plan import CapturePlan
from specforge_dstill.data.capture_transformers import TransformersExtractor
from specforge_dstill.data.conversations import read_prompts
from specforge_dstill.data.generation import Decoding, generate_batch
from specforge_dstill.data.greedy_answers import Conversing, GreedyTarget, weights_fingerprint
from specforge_dstill.data.manifest import CacheManifest, config_hash
from specforge_dstill.data.progress import Progress
from specforge_dstill.data.versions import library_versions
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.replay import Answer, walk
from specforge_dstill.evaluation.report import Report, Score
from specforge_dstill.maths.reveal_schedule import check_steps
from specforge_dstill.modes.assembly import load_drafter, resolve_draft
from specforge_dstill.modes.checkpoints import find_state_file, weights_hash
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.replay import PassesDrafter
from specforge_dstill.runfile import RunFile, load_run


@dataclass(frozen=True)
class DataSet:
    """``--prompts NAME=SOURCE``."""

    name: str
    source: str


@dataclass(frozen=True)
class DrafterChoice:
    """``--drafter NAME=CHECKPOINT[:STEPS]``; without steps those of ``--steps``."""

    name: str
    checkpoint: str
    steps: tuple[int, ...] | None


@dataclass(frozen=True)
class ReplayPlan:
    """What will be measured, checked before anything heavy is loaded."""

    args: argparse.Namespace
    run: RunFile
    capture: CapturePlan
    block_size: int
    drafters: tuple[tuple[DrafterChoice, tuple[int, ...]], ...]

    @classmethod
    def of(cls, args: argparse.Namespace) -> ReplayPlan:
        """Check the command line against the run file and the disk."""
        _check_distinct("--prompts", [chosen.name for chosen in args.prompts])
        _check_distinct("--drafter", [chosen.name for chosen in args.drafter])
        run_file = load_run(args.config, args.overrides, "dflash")
        block_size = _block_size(run_file)
        default = args.steps or tuple(dict.fromkeys((1, run_file.options.steps)))
        drafters = tuple((chosen, chosen.steps or default) for chosen in args.drafter)
        for chosen, passes in drafters:
            for steps in passes:
                try:
                    check_steps(block_size, steps)
                except ValueError as error:
                    raise UserError(f"--drafter {chosen.name} at {steps} passes: {error}") from None
            _check_checkpoint(chosen)
        return cls(args, run_file, CapturePlan.of(run_file), block_size, drafters)

    def answer(self) -> tuple[dict[str, list[Answer]], dict[str, list[str]]]:
        """The target's greedy answers by data set, and the prompts that were left out."""
        args, model = self.args, self.run.config.model
        prompts = {s.name: read_prompts(s.source, limit=args.limit) for s in args.prompts}
        tokenizer = targets.load_tokenizer(
            model.target_model_path, trust_remote_code=model.trust_remote_code
        )
        decoding = Decoding(
            stop_ids=chat.stop_token_ids(model.target_model_path, tokenizer),
            max_new_tokens=args.max_new_tokens,
            max_positions=targets.max_positions(self.capture.target_config),
        )
        settings = self._answer_settings(tokenizer, decoding)
        load = cache(partial(self._load_target, decoding))
        answers, left_out = {}, {}
        for name, chosen in prompts.items():
            conversing = Conversing(
                AnswerFolder(args.answers or args.output / "answers", settings),
                tokenizer,
                settings["template_kwargs"],
                decoding,
                load,
                args.batch_size,
                partial(_answering, name),
            )
            turns, left_out[name] = conversing.answer(chosen)
            if not turns:
                raise UserError(f"{name}: every prompt fills the target's window")
            answers[name] = [
                Answer(turn.name, found.input_ids, found.start, found.features)
                for turn in turns
                for found in [turn.answer]
            ]
        return answers, left_out

    def replay(self, answers: dict[str, list[Answer]], left_out: dict[str, list[str]]) -> Report:
        """Score every drafter."""
        total = sum(map(len, answers.values())) * sum(len(passes) for _, passes in self.drafters)
        scores, hashes = [], {}
        with Progress("replay", total=total, unit="answer") as progress:
            for chosen, passes in self.drafters:
                drafter = self._load_drafter(chosen)
                hashes[chosen.name] = weights_hash(drafter.draft_model)
                for steps in passes:
                    replayed = {
                        name: walk(
                            PassesDrafter(drafter, steps),
                            found,
                            batch_size=self.args.batch_size,
                            update=progress.advance,
                        )
                        for name, found in answers.items()
                    }
                    scores.append(Score(chosen.name, steps, replayed))
        return Report(self.block_size, tuple(scores), self._details(hashes, left_out))

    @property
    def _device(self) -> str:
        return self.args.device or targets.default_device()

    def _load_target(self, decoding: Decoding) -> GreedyTarget:
        model = self.run.config.model
        target = targets.load_model(
            model.target_model_path,
            dtype=self.args.dtype,
            device=self._device,
            attn_implementation=self.args.attn_implementation,
            trust_remote_code=model.trust_remote_code,
        )
        return GreedyTarget(
            answer=lambda prompts: generate_batch(target, prompts, decoding),
            extract=TransformersExtractor(target, self.capture.layers),
        )

    def _load_drafter(self, chosen: DrafterChoice) -> BlockDrafter:
        config = self.run.config
        model = config.model.model_copy(update={"torch_dtype": self.args.dtype})
        # SpecForge tells on stdout what it loads; that is for the table.
        with redirect_stdout(sys.stderr):
            return load_drafter(
                config.model_copy(update={"model": model}),
                chosen.checkpoint,
                device=torch.device(self._device),
                blocks_per_group=self.run.options.blocks_per_group,
            )

    def _answer_settings(self, tokenizer: Any, decoding: Decoding) -> dict[str, Any]:
        """What decides the answers and their features; kept beside them."""
        target = self.run.config.model.target_model_path
        return {
            "target": target,
            "target_config": config_hash(self.capture.target_config),
            "target_weights": weights_fingerprint(target) or target,
            "target_layer_ids": list(self.capture.layers),
            "dtype": self.args.dtype,
            "chat_template": chat.template_hash(tokenizer, chat.OWN_TEMPLATE),
            "template_kwargs": self._template_kwargs(),
            "stop_token_ids": list(decoding.stop_ids),
            "max_new_tokens": decoding.max_new_tokens,
            "versions": library_versions("transformers", "torch"),
        }

    def _template_kwargs(self) -> dict[str, Any]:
        if self.args.template_kwargs is not None:
            return dict(self.args.template_kwargs)
        folder = self.run.config.data.hidden_states_path
        cached = CacheManifest.read(Path(folder)) if folder else None
        return cached.template_kwargs if cached else {}

    def _details(self, hashes: dict[str, str], left_out: dict[str, list[str]]) -> dict[str, Any]:
        args, model = self.args, self.run.config.model
        return {
            "measured": "greedy tau by replay",
            "run_file": self.run.path,
            "overrides": list(args.overrides),
            "target": model.target_model_path,
            "draft_config": model.draft_model_config,
            "dtype": args.dtype,
            "device": self._device,
            "max_new_tokens": args.max_new_tokens,
            "template_kwargs": self._template_kwargs(),
            "prompts": {s.name: {"source": s.source, "limit": args.limit} for s in args.prompts},
            "left_out": left_out,
            "checkpoints": {
                chosen.name: {
                    "path": chosen.checkpoint,
                    "resolved": _resolved(chosen.checkpoint),
                    "weights": hashes[chosen.name],
                }
                for chosen, _ in self.drafters
            },
            "versions": library_versions("specforge", "transformers", "torch"),
        }


def _answering(name: str, count: int) -> Progress:
    return Progress(f"answers to {name}", total=count, unit="answer")


def _block_size(run_file: RunFile) -> int:
    try:
        return int(resolve_draft(run_file.config).block_size)
    except UserError as error:
        raise UserError(f"{run_file.path}: {error}") from error


def _check_distinct(option: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{option}: the name {name!r} is given twice; names must differ")


def _check_checkpoint(chosen: DrafterChoice) -> None:
    """Refuse a path with no checkpoint; a name on the Hub is tried when its turn comes."""
    path = Path(chosen.checkpoint.removeprefix("file://")).expanduser()
    on_the_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", chosen.checkpoint) and not path.parent.exists()
    if not path.exists() and not on_the_hub:
        raise UserError(f"--drafter {chosen.name}: no checkpoint {chosen.checkpoint}")
    try:
        find_state_file(chosen.checkpoint)
    except UserError as error:
        raise UserError(f"--drafter {chosen.name}: {error}") from None


def _resolved(checkpoint: str) -> str:
    """The checkpoint's own folder, where ``-latest`` points to now."""
    state = find_state_file(checkpoint)
    return str(state.resolve().parent) if state else checkpoint
