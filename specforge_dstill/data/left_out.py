"""Conversations that give no sample: they are left out of a capture and counted by the reason."""

from __future__ import annotations

from typing import ClassVar

from specforge_dstill.errors import UserError, reason


class LeftOutError(UserError):
    """A conversation cannot be shown to the target as it stands.

    Attributes:
        conversation: its id.
        why: what it is counted under.
    """

    why: ClassVar[str]

    def __init__(self, conversation: str, problem: str) -> None:
        super().__init__(f"conversation {conversation!r}: {problem}")
        self.conversation = conversation


class RewrittenAnswersError(LeftOutError):
    """The chat template shows none of a conversation's answers as the target gave it."""

    why = "answers rewritten by the chat template"

    def __init__(self, conversation: str) -> None:
        super().__init__(
            conversation,
            "the chat template rewrites every answer, so none can be scored; give the same "
            "--template-kwargs as for regenerate, or name one of SpecForge's templates with "
            "--chat-template",
        )


class RefusedByTemplateError(LeftOutError):
    """The chat template raises an error, such as for two user turns in a row."""

    why = "refused by the chat template"

    def __init__(self, conversation: str, error: Exception) -> None:
        super().__init__(conversation, f"the chat template refuses it: {reason(error)}")
