"""The one exception that means "the user can mend this", and what other errors say."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in the input: the message says what is wrong, where, and how to mend it.

    Entry points print the message on one line and exit with status 2, without a traceback.
    """


def reason(error: BaseException) -> str:
    """The first line of what an error says; its type's name when it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
