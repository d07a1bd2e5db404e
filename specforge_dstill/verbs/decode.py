"""Real decoding: every drafter and the target alone answer the same prompts, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import torch

from specforge_dstill.console import say
from specforge_dstill.data.answer_transformers import first_messages
from specforge_dstill.data.chat import answer_text, prompt_tokens
from specforge_dstill.data.conversations import Message, Prompt
from specforge_dstill.data.decoded_folder import DecodedFolder
from specforge_dstill.data.draft_config import tells_confidence
from specforge_dstill.data.generation import draw_seed
from specforge_dstill.data.progress import Progress
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.interleaved import (
    WARM_UP_RUNS,
    WARM_UP_TOKENS,
    Interleaved,
    Measured,
    measured_from_json,
)
from specforge_dstill.evaluation.replay import Walk
from specforge_dstill.evaluation.report import Report, Score
from specforge_dstill.evaluation.rules import Comparison, Rejection, Rule
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.evaluation.speed import PLAIN, Speed, Timing
from specforge_dstill.evaluation.transformers_target import check_rolls_back
from specforge_dstill.maths.verification import check_rejection
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.verbs.decode_ways import make_ways, way_name
from specforge_dstill.verbs.evaluation_inputs import MeasuredDraft
from specforge_dstill.verbs.evaluation_plan import EvaluationPlan

REJECT = "reject"

#: Of one turn: its name, and what each way of decoding gave.
Turn = tuple[str, dict[str, Measured]]


@dataclass(frozen=True)
class DecodeRoute:
    """``evaluate --decode``."""

    plan: EvaluationPlan
    rule: Rule
    sampling: Sampling

    @classmethod
    def of(cls, plan: EvaluationPlan) -> DecodeRoute:
        """Check what decoding needs, before anything heavy is loaded."""
        args = plan.args
        check_rolls_back(plan.capture.target_config)
        _check_confidence(plan)
        try:
            sampling = Sampling(args.temperature, args.top_k, args.top_p)
            if args.rule != REJECT:
                return cls(plan, Comparison(sampling), sampling)
            for _, passes in plan.drafters:
                check_rejection(steps=max(passes))
            return cls(plan, Rejection(sampling), sampling)
        except ValueError as error:
            raise UserError(f"--rule {args.rule}: {error}") from None

    def measure(self) -> tuple[Report, dict[str, list[str]]]:
        """Measure what is not there yet; and the turns that were left out, by data set."""
        plan = self.plan
        prompts = plan.prompts()
        drafters = {chosen.name: plan.load_drafter(chosen) for chosen, _ in plan.drafters}
        facts = {name: MeasuredDraft.of(drafter) for name, drafter in drafters.items()}
        folder = DecodedFolder(plan.args.output / "decoded", self._settings(facts))
        start = cache(partial(self._start, drafters, prompts))
        turns: dict[str, list[Turn]] = {}
        left_out: dict[str, list[str]] = {name: [] for name in prompts}
        total = sum(len(prompt.turns) for chosen in prompts.values() for prompt in chosen)
        with Progress("decode", total=total, unit="turn") as progress:
            for name, chosen in prompts.items():
                turns[name] = []
                for prompt in chosen:
                    for turn in self._converse(prompt, folder, start, left_out[name]):
                        turns[name].append(turn)
                        progress.advance()
                if not turns[name]:
                    raise UserError(f"{name}: every prompt fills the target's window")
        details = {**self._details(), **plan.details(facts, left_out)}
        return self._report(turns, details), left_out

    def _converse(
        self,
        prompt: Prompt,
        folder: DecodedFolder,
        start: Callable[[], Interleaved],
        left_out: list[str],
    ) -> Iterator[Turn]:
        """The turns of a prompt. Each follows the answers that the target gave alone."""
        plan = self.plan
        talk = first_messages(prompt)
        for index, text in enumerate(prompt.turns):
            name = prompt.id if index == 0 else f"{prompt.id}/{index + 1}"
            talk.append(Message("user", text))
            ids = prompt_tokens(plan.tokenizer, talk, plan.template_kwargs, name=prompt.id)
            room = plan.decoding.room(len(ids))
            if room == 0:
                left_out.append(name)
                return
            found = folder.get(ids)
            if found is None:
                seed = draw_seed(plan.args.seed, prompt.id, index)
                measured = start().measure(self._tensor(ids), max_new_tokens=room, seed=seed)
                found = {way: one.to_json() for way, one in measured.items()}
                folder.put(ids, found)
            turn = {way: measured_from_json(one) for way, one in found.items()}
            yield name, turn
            said = turn[PLAIN].decoded.tokens
            talk.append(
                Message("assistant", answer_text(plan.tokenizer, said, plan.decoding.stop_ids))
            )

    def _start(
        self, drafters: Mapping[str, BlockDrafter], prompts: Mapping[str, Sequence[Prompt]]
    ) -> Interleaved:
        """Load the target, and warm up on the first prompts."""
        plan = self.plan
        by_passes = {
            (chosen.name, steps): drafters[chosen.name]
            for chosen, passes in plan.drafters
            for steps in passes
        }
        ways = make_ways(
            plan.load_target(),
            plan.capture.layers,
            by_passes,
            rule=self.rule,
            stop_ids=plan.decoding.stop_ids,
            min_confidence=plan.args.min_confidence,
        )
        measuring = Interleaved(ways, torch.device(plan.device))
        first = []
        for prompt in [p for chosen in prompts.values() for p in chosen][:WARM_UP_RUNS]:
            talk = [*first_messages(prompt), Message("user", prompt.turns[0])]
            ids = prompt_tokens(plan.tokenizer, talk, plan.template_kwargs, name=prompt.id)
            first.append((self._tensor(ids), plan.decoding.room(len(ids))))
        measuring.warm_up([(ids, room) for ids, room in first if room])
        return measuring

    def _tensor(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(ids, device=self.plan.device)

    def _settings(self, facts: Mapping[str, MeasuredDraft]) -> dict[str, Any]:
        """What decides answers and times; kept beside them."""
        ways = {
            way_name(c.name, steps): facts[c.name].weights
            for c, all_ in self.plan.drafters
            for steps in all_
        }
        return {
            **self.plan.answer_settings(),
            **self._details(),
            "block_size": self.plan.block_size,
            "device": self.plan.device,
            "drafters": ways,
        }

    def _details(self) -> dict[str, Any]:
        least = self.plan.args.min_confidence
        return {
            "measured": "real decoding",
            **asdict(self.sampling),
            "rule": self.plan.args.rule,
            **({} if least is None else {"min_confidence": least}),
            "seed": self.plan.args.seed,
            "batch_size": 1,
            "warm_up": {"runs": WARM_UP_RUNS, "tokens": WARM_UP_TOKENS},
            "threads": torch.get_num_threads(),
        }

    def _report(self, turns: Mapping[str, Sequence[Turn]], details: dict[str, Any]) -> Report:
        scores = []
        for chosen, passes in self.plan.drafters:
            for steps in passes:
                way = way_name(chosen.name, steps)
                walks = {
                    data_set: [Walk(name, turn[way].decoded.accepted) for name, turn in found]
                    for data_set, found in turns.items()
                }
                speed = self._speed(turns, way)
                scores.append(Score(chosen.name, steps, walks, speed))
                _warn_of_other_answers(way, speed)
        return Report(self.plan.block_size, tuple(scores), details, plain=self._speed(turns, PLAIN))

    def _speed(self, turns: Mapping[str, Sequence[Turn]], way: str) -> Speed:
        def timing(name: str, turn: dict[str, Measured]) -> Timing:
            found, plain = turn[way].decoded, turn[PLAIN].decoded
            must_agree = self.sampling.is_greedy and way != PLAIN
            same = found.tokens == plain.tokens if must_agree else None
            return Timing(name, len(found.tokens), found.seconds, same)

        return Speed(
            {data_set: [timing(*turn) for turn in found] for data_set, found in turns.items()},
            max(turn[way].peak_bytes for found in turns.values() for _, turn in found),
        )


def _check_confidence(plan: EvaluationPlan) -> None:
    """UserError for a ``--min-confidence`` that the drafters cannot be held to."""
    least = plan.args.min_confidence
    if least is None:
        return
    if not 0 <= least <= 1:
        raise UserError(f"--min-confidence {least:g}: a probability lies between 0 and 1")
    if any(steps > 1 for _, passes in plan.drafters for steps in passes):
        raise UserError("--min-confidence is for drafts of one pass; give --steps 1")
    if not tells_confidence(plan.capture.draft_config):
        raise UserError(
            "--min-confidence needs drafters with a confidence head; the draft config names none "
            "(dflash_config.enable_confidence_head, of DSparkDraftModel)"
        )


def _warn_of_other_answers(way: str, speed: Speed) -> None:
    """Greedy decoding is lossless in exact arithmetic; rounding may still decide a close call."""
    if speed.same is not None and speed.same[0] < speed.same[1]:
        other = speed.same[1] - speed.same[0]
        say(
            f"{way}: {other} of {speed.same[1]} greedy answers differ from the target's own; a "
            "block and single tokens are read with different rounding (--dtype float32 has least)"
        )
