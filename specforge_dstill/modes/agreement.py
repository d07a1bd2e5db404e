"""Mistakes that one rank finds and every rank must hear of."""

from __future__ import annotations

from collections.abc import Callable

from torch import distributed

from specforge_dstill.errors import UserError


def agreed(check: Callable[[], None]) -> None:
    """Run a check on every rank, each on its share; all of them raise the first rank's mistake.

    A rank that left alone would break the collective that the others wait in: their tracebacks,
    not the mistake, would be what the user sees.
    """
    mistake = None
    try:
        check()
    except UserError as error:
        mistake = str(error)
    found = [mistake]
    if distributed.is_available() and distributed.is_initialized():
        found = [None] * distributed.get_world_size()
        distributed.all_gather_object(found, mistake)
    first = next((message for message in found if message is not None), None)
    if first is not None:
        raise UserError(first)
