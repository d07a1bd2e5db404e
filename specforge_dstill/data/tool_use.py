"""Tool calls and lists of tools, in the shape that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specforge_dstill.errors import UserError

#: Tool calls of a message, or the tools of a conversation.
Objects = tuple[dict[str, Any], ...]


def tools_in(row: Mapping[str, Any], where: str) -> Objects | None:
    """The tools that a row offers the target, None for none. Raises: ``UserError``."""
    return _objects(row, "tools", where)


def tool_calls_in(message: Mapping[str, Any], where: str) -> Objects | None:
    """A message's tool calls, their arguments as objects: servers give them as JSON text.

    None for none. Raises: ``UserError``.
    """
    calls = _objects(message, "tool_calls", where)
    return None if calls is None else tuple(map(_with_arguments, calls))


def _objects(holder: Mapping[str, Any], key: str, where: str) -> Objects | None:
    """The objects under ``key``: a list, or JSON text of one, as data sets on the Hub have it."""
    found = _parsed(holder.get(key))
    if not found:
        return None
    if not isinstance(found, list | tuple) or not all(isinstance(item, Mapping) for item in found):
        raise UserError(f'{where}: "{key}" must be a list of objects')
    return tuple(dict(item) for item in found)


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call
    arguments = _parsed(function.get("arguments"))
    if not isinstance(arguments, Mapping):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return value
