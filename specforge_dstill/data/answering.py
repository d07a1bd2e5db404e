"""Have the missing prompts answered, with progress, and know which got no answer."""

from __future__ import annotations

from threading import Lock
from typing import Protocol

from specforge_dstill.data.answer_transformers import LeaveOut, Save
from specforge_dstill.data.answers_file import AnswersFile
from specforge_dstill.data.conversations import Conversation, Prompt
from specforge_dstill.data.progress import Progress


class Answers(Protocol):
    """What both backends are: they answer prompts and save each answer as it ends."""

    def answer(self, prompts: list[Prompt], save: Save, leave_out: LeaveOut) -> None: ...


def answer_missing(
    answers: Answers, missing: list[Prompt], output: AnswersFile, *, total: int
) -> list[tuple[str, str]]:
    """Append the answers to ``output``; the ids of prompts that have none, each with the reason."""
    left_out: list[tuple[str, str]] = []
    lock = Lock()  # the backends may call back from several threads
    with Progress(
        "regenerate", total=total, unit="conversation", done=total - len(missing)
    ) as progress:

        def save(conversation: Conversation) -> None:
            output.add(conversation)
            with lock:
                progress.advance()

        def leave_out(name: str, why: str) -> None:
            with lock:
                left_out.append((name, why))

        answers.answer(missing, save, leave_out)
    return left_out
