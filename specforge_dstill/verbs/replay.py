"""Exact greedy tau by replay: the target answers once, and every drafter walks its answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from specforge_dstill.data.answer_folder import AnswerFolder
from specforge_dstill.data.capture_transformers import TransformersExtractor
from specforge_dstill.data.generation import generate_batch
from specforge_dstill.data.greedy_answers import Conversing, GreedyTarget
from specforge_dstill.data.progress import Progress
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.replay import Answer, walk
from specforge_dstill.evaluation.report import Report, Score
from specforge_dstill.modes.replay import PassesDrafter
from specforge_dstill.verbs.captured import captured_answers
from specforge_dstill.verbs.evaluation_inputs import MeasuredDraft
from specforge_dstill.verbs.evaluation_plan import EvaluationPlan


@dataclass(frozen=True)
class ReplayRoute:
    """``evaluate --replay``."""

    plan: EvaluationPlan

    def measure(self) -> tuple[Report, dict[str, list[str]]]:
        """Answer what is missing and score every drafter; and the prompts that were left out."""
        if self.plan.args.captured:
            answers, told = captured_answers(self.plan)
            return self._replay(answers, {}, told), {}
        answers, left_out = self._answer()
        return self._replay(answers, left_out, {}), left_out

    def _answer(self) -> tuple[dict[str, list[Answer]], dict[str, list[str]]]:
        """The target's greedy answers by data set, and the prompts that were left out."""
        plan, args = self.plan, self.plan.args
        prompts, settings = plan.prompts, plan.answer_settings()
        load = cache(self._load_target)
        answers, left_out = {}, {}
        for name, chosen in prompts.items():
            conversing = Conversing(
                AnswerFolder(args.answers or args.output / "answers", settings),
                plan.tokenizer,
                plan.template_variables,
                plan.decoding,
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

    def _replay(
        self,
        answers: dict[str, list[Answer]],
        left_out: dict[str, list[str]],
        told: dict[str, Any],
    ) -> Report:
        """Score every drafter; ``told`` is what the results tell in the place of the plan's."""
        plan = self.plan
        total = sum(map(len, answers.values())) * sum(len(passes) for _, passes in plan.drafters)
        scores, facts = [], {}
        with Progress("replay", total=total, unit="answer") as progress:
            for chosen, passes in plan.drafters:
                drafter = plan.load_drafter(chosen)
                facts[chosen.name] = MeasuredDraft.of(drafter)
                for steps in passes:
                    replayed = {
                        name: walk(
                            PassesDrafter(drafter, steps),
                            found,
                            batch_size=plan.args.batch_size,
                            update=progress.advance,
                        )
                        for name, found in answers.items()
                    }
                    scores.append(Score(chosen.name, steps, replayed))
        details = {"measured": "greedy tau by replay", **plan.details(facts, left_out), **told}
        return Report(plan.block_size, tuple(scores), details)

    def _load_target(self) -> GreedyTarget:
        target = self.plan.load_target()
        return GreedyTarget(
            answer=lambda prompts: generate_batch(target, prompts, self.plan.decoding),
            extract=TransformersExtractor(target, self.plan.capture.layers),
        )


def _answering(name: str, count: int) -> Progress:
    return Progress(f"answers to {name}", total=count, unit="answer")
