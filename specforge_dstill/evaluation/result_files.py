"""The JSON files of an evaluation: written for eyes, too, and read back with what they lack."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")


def json_text(value: Any, depth: int = 0) -> str:
    """JSON with an item a line; a list of plain values stays on one line.

    Raises: ``ValueError`` for NaN and infinity.
    """
    if isinstance(value, Mapping):
        names = (json.dumps(str(name), ensure_ascii=False) for name in value)
        texts = (json_text(one, depth + 1) for one in value.values())
        ends, items = "{}", [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
    elif isinstance(value, list | tuple) and not all(map(_is_plain, value)):
        ends, items = "[]", [json_text(one, depth + 1) for one in value]
    else:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not items:
        return ends
    line = "\n" + " " * depth
    return ends[0] + ",".join(f"{line} {item}" for item in items) + line + ends[1]


def _is_plain(value: Any) -> bool:
    return not isinstance(value, Mapping | list | tuple)


def parsed(text: str, build: Callable[[dict[str, Any]], _T], *, kind: str, version: int) -> _T:
    """What ``build`` makes of a file's content.

    Args:
        text: the file's.
        kind: what the file should hold, for messages.
        version: its ``format``.

    Raises:
        ValueError: the text is not JSON, is of another kind or format, or lacks something.
    """
    content = json.loads(text)
    if not isinstance(content, dict) or content.get("format") != version:
        raise ValueError(f"not {kind} of format {version}")
    try:
        return build(content)
    except KeyError as error:
        raise ValueError(f"not {kind}: lacks {error}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not {kind}: {error}") from error
