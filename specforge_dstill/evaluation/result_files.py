"""Reading back the JSON files of an evaluation: of which kind one is, and what it lacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


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
