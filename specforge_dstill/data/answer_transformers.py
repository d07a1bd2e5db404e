"""Answers from a target loaded in this process by transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specforge_dstill.data.answer_message import answer_message
from specforge_dstill.data.chat import prompt_tokens
from specforge_dstill.data.conversations import Conversation, Message, Prompt
from specforge_dstill.data.generation import Decoding, draw_seed, generate_batch

Save = Callable[[Conversation], None]
#: Called with a prompt's id and why it gets no answer.
LeaveOut = Callable[[str, str], None]


def first_messages(prompt: Prompt) -> list[Message]:
    """The messages before the first user turn."""
    return [Message("system", prompt.system)] if prompt.system is not None else []


@dataclass(frozen=True)
class TransformersAnswers:
    """Answers prompts batch by batch; each user turn sees the target's earlier answers.

    What an answer draws depends on (seed, prompt id, turn); see ``generation``.
    """

    model: Any
    tokenizer: Any
    decoding: Decoding
    seed: int
    batch_size: int
    template_kwargs: Mapping[str, Any]

    def answer(self, prompts: Sequence[Prompt], save: Save, leave_out: LeaveOut) -> None:
        """Answer every prompt, saving each batch as it ends; the longest prompts come first."""
        lengths = [len(self._tokens(p, 0, first_messages(p))) for p in prompts]
        order = sorted(range(len(prompts)), key=lambda i: (-lengths[i], i))
        for start in range(0, len(order), self.batch_size):
            batch = [prompts[i] for i in order[start : start + self.batch_size]]
            for conversation in self._batch(batch, leave_out):
                save(conversation)

    def _batch(self, prompts: Sequence[Prompt], leave_out: LeaveOut) -> Iterator[Conversation]:
        talks = {p.id: first_messages(p) for p in prompts}
        for turn in range(max(len(p.turns) for p in prompts)):
            asked: list[tuple[Prompt, list[int]]] = []
            for prompt in prompts:
                if turn < len(prompt.turns) and prompt.id in talks:
                    ids = self._tokens(prompt, turn, talks[prompt.id])
                    if self.decoding.room(len(ids)) > 0:
                        asked.append((prompt, ids))
                    else:
                        del talks[prompt.id]
                        leave_out(prompt.id, f"turn {turn + 1} fills the target's window")
            self._turn(turn, asked, talks)
        yield from (Conversation(p.id, tuple(talks[p.id])) for p in prompts if p.id in talks)

    def _turn(
        self, turn: int, asked: Sequence[tuple[Prompt, list[int]]], talks: dict[str, list[Message]]
    ) -> None:
        if not asked:
            return
        seeds = [draw_seed(self.seed, prompt.id, turn) for prompt, _ in asked]
        answers = generate_batch(self.model, [ids for _, ids in asked], self.decoding, seeds)
        for (prompt, _), ids in zip(asked, answers, strict=True):
            answer = answer_message(self.tokenizer, ids, self.decoding.stop_ids)
            talks[prompt.id] += [_user(prompt, turn), answer]

    def _tokens(self, prompt: Prompt, turn: int, before: Sequence[Message]) -> list[int]:
        asked = [*before, _user(prompt, turn)]
        return prompt_tokens(self.tokenizer, asked, self.template_kwargs, name=prompt.id)


def _user(prompt: Prompt, turn: int) -> Message:
    return Message("user", prompt.turns[turn])
