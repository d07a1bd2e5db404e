"""Real decoding: every drafter and the target alone answer the same prompts, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import torch

from specforge_dstill.data.answer_message import answer_message
from specforge_dstill.data.answer_transformers import first_messages
from specforge_dstill.data.chat import prompt_tokens
from specforge_dstill.data.conversations import Message, Prompt
from specforge_dstill.data.decoded_folder import DecodedFolder
from specforge_dstill.data.generation import draw_seed
from specforge_dstill.data.progress import Progress
from specforge_dstill.device_names import device_name
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.interleaved import (
    WARM_UP_RUNS,
    WARM_UP_TOKENS,
    Interleaved,
    measured_from_json,
)
from specforge_dstill.evaluation.report import Report
from specforge_dstill.evaluation.rules import Rule
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.evaluation.speed import PLAIN
from specforge_dstill.evaluation.transformers_target import check_own_code, check_rolls_back
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.verbs.decode_checks import check_confidence, rule_of, sampling_of
from specforge_dstill.verbs.decode_report import Turn, decoding_report
from specforge_dstill.verbs.decode_ways import make_ways, way_name
from specforge_dstill.verbs.evaluation_inputs import MeasuredDraft
from specforge_dstill.verbs.evaluation_plan import EvaluationPlan


@dataclass(frozen=True)
class DecodeRoute:
    """``evaluate --decode``."""

    plan: EvaluationPlan
    rule: Rule
    sampling: Sampling

    @classmethod
    def of(cls, plan: EvaluationPlan) -> DecodeRoute:
        """Check what decoding needs, before anything heavy is loaded."""
        check_rolls_back(plan.capture.target_config)
        check_confidence(plan)
        sampling = sampling_of(plan)
        return cls(plan, rule_of(plan, sampling), sampling)

    def measure(self) -> tuple[Report, dict[str, list[str]]]:
        """Measure what is not there yet; and the turns that were left out, by data set."""
        plan = self.plan
        prompts = plan.prompts
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
        greedy = self.sampling.is_greedy
        return decoding_report(plan, turns, facts, details, greedy=greedy), left_out

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
            name = prompt.turn_name(index)
            talk.append(Message("user", text))
            ids = prompt_tokens(plan.tokenizer, talk, plan.template_variables, name=prompt.id)
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
            talk.append(answer_message(plan.tokenizer, said, plan.decoding.stop_ids))

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
        target = plan.load_target()
        check_own_code(target)
        ways = make_ways(
            target,
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
            ids = prompt_tokens(plan.tokenizer, talk, plan.template_variables, name=prompt.id)
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
        args = self.plan.args
        least, attention = args.min_confidence, args.attn_implementation
        return {
            "measured": "real decoding",
            **asdict(self.sampling),
            "rule": args.rule,
            **({} if least is None else {"min_confidence": least}),
            **({} if attention is None else {"attn_implementation": attention}),
            "device_name": device_name(self.plan.device),
            "seed": args.seed,
            "batch_size": 1,
            "warm_up": {"runs": WARM_UP_RUNS, "tokens": WARM_UP_TOKENS},
            "threads": torch.get_num_threads(),
        }
