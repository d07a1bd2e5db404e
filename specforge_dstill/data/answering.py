"""Have the missing prompts answered, with progress, and know which got no answer."""

from __future__ import annotations

from threading import Lock
from typing import Protocol

from specforge_dstill.data.answer_transformers import LeaveOut, Save
from specforge_dstill.data.answers_file import AnswersFile
from specforge_dstill.data.conversations import Conversation, Prompt
from specforge_dstill.data.progress import Progress
from specforge_dstill.errors import UserError

#: When so many of the first prompts are refused in the same words, the rest is not asked.
_FIRST = 20


class Answers(Protocol):
    """What both backends are: they answer prompts and save each answer as it ends."""

    def answer(self, prompts: list[Prompt], save: Save, leave_out: LeaveOut) -> None: ...


def answer_missing(
    answers: Answers, missing: list[Prompt], output: AnswersFile, *, total: int
) -> dict[str, str]:
    """Append the answers to ``output``; why there is none, by the ids of the prompts without one.

    Args:
        total: prompts, those answered before included.

    Raises:
        UserError: no prompt has an answer; early, when the first ones are all refused alike.
    """
    refused: dict[str, str] = {}
    lock = Lock()  # the backends may call back from several threads
    before = total - len(missing)
    with Progress("regenerate", total=total, unit="conversation", done=before) as progress:

        def save(conversation: Conversation) -> None:
            output.add(conversation)
            with lock:
                progress.advance()

        def leave_out(name: str, why: str) -> None:
            with lock:
                refused[name] = why
                if not before:
                    _refuse_the_rest(missing, refused)

        answers.answer(missing, save, leave_out)
    if len(refused) == total:
        name, why = next(iter(refused.items()))
        raise UserError(f"none of the {total} prompts has an answer; the first, {name!r}: {why}")
    return refused


def _refuse_the_rest(prompts: list[Prompt], refused: dict[str, str]) -> None:
    """Raises: ``UserError`` when the first of many prompts are all refused in the same words."""
    if len(refused) < _FIRST or len(prompts) == _FIRST:
        return
    reasons = {refused.get(prompt.id) for prompt in prompts[:_FIRST]}
    why = reasons.pop()
    if why is not None and not reasons:
        raise UserError(
            f"the first {_FIRST} prompts are all refused, and the rest was not asked: {why}; mend "
            "that and run the same command again"
        )
