"""``dstill.collect.on_shard``: a function of the user's that hears of each finished shard."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from specforge_dstill.errors import UserError, reason
from specforge_dstill.trajectory_store import OnShard

OPTION = "dstill.collect.on_shard"


def shard_callback(name: str | None) -> OnShard | None:
    """The function that ``package.module:function`` names, made safe to call.

    What it raises becomes one line on stderr: the shard is in place whatever happens to it there,
    and the collection goes on.

    Errors: ``UserError`` when there is no such function.
    """
    if name is None:
        return None
    called = _find(name)

    def on_shard(*, uri: str, index: int, path: Path | None) -> None:
        try:
            called(uri=uri, index=index, path=path)
        except Exception as error:
            print(
                f"specforge-dstill: warning: {OPTION}: {name} failed for {uri}: "
                f"{type(error).__name__}: {reason(error)}; the shard is in place",
                file=sys.stderr,
                flush=True,
            )

    return on_shard


def _find(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        found = attrgetter(attribute)(import_module(module))
    except Exception as error:  # importing runs the user's code
        raise UserError(f"{OPTION}: {name} cannot be imported: {reason(error)}") from error
    if not callable(found):
        raise UserError(f"{OPTION}: {name} is a {type(found).__name__}, not a function")
    function: Callable[..., Any] = found
    return function
