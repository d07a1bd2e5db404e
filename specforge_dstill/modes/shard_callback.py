"""``dstill.collect.on_shard``: a function of the user's that hears of each finished shard."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from specforge_dstill.errors import UserError, reason

OPTION = "dstill.collect.on_shard"


class OnShard(Protocol):
    """Called with each finished shard, after it is in place.

    ``uri`` names the shard, ``index`` counts from 0, ``path`` is its file where that is on this
    machine, else None.
    """

    def __call__(self, *, uri: str, index: int, path: Path | None) -> object: ...


def shard_callback(name: str) -> OnShard:
    """The function that ``package.module:function`` names.

    Raises: ``UserError`` when there is no such function.
    """
    module, _, attribute = name.partition(":")
    try:
        found = attrgetter(attribute)(import_module(module))
    except Exception as error:  # importing runs the user's code
        raise UserError(f"{OPTION}: {name} cannot be imported: {reason(error)}") from error
    if not callable(found):
        raise UserError(f"{OPTION}: {name} is a {type(found).__name__}, not a function")
    function: OnShard = found
    return function
