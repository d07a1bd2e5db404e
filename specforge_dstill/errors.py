"""The one exception that means "the user can mend this"."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in the input: the message says what is wrong, where, and how to mend it.

    Entry points print the message on one line and exit with status 2, without a traceback.
    """
