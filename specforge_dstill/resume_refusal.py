"""SpecForge's refusal to resume on other files than before, said in a line that can be read.

A checkpoint records the target and the draft config by path, size and time of change. SpecForge
prints both records whole, a page of nested tuples, of which often one number differs.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator
from pathlib import PurePath
from shlex import quote
from typing import Any, TypeGuard

_RECORD = "specforge_model_provenance"
_REFUSAL = re.compile(
    rf"(?P<checkpoint>checkpoint .+?) was written with {_RECORD}=(?P<then>\(.*\)) "
    rf"but this run has {_RECORD}=(?P<now>\(.*\)); (?P<mend>.*)",
    re.DOTALL,
)


def readable(message: str) -> str:
    """A refusal of SpecForge's with what differs for its two records; others as they are."""
    found = _REFUSAL.fullmatch(message)
    if not found:
        return message
    try:
        then, now = (dict(literal_eval(found[side])) for side in ("then", "now"))
        differences = "; ".join(_differences(then, now))
    except (ValueError, TypeError, SyntaxError, LookupError):
        return message  # recorded in another form than SpecForge 0.2's
    if not differences:
        return message
    return f"{found['checkpoint']} does not fit: {differences}; {found['mend']}"


def _differences(then: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name in [*then, *(name for name in now if name not in then)]:
        before, after = then.get(name), now.get(name)
        if before == after:
            continue
        if _is_source(before) and _is_source(after) and before[:2] == after[:2]:
            yield from _changed_files(before, after)
        else:
            yield f"{name} was {_shown(before)}, and is {_shown(after)}"


def _shown(value: Any) -> str:
    """The path of what records a file or a folder, the name of what is not on this machine."""
    named = isinstance(value, tuple) and len(value) == 2 and value[0] == "reference"
    return str(value[1]) if named or _is_source(value) else repr(value)


def _is_source(value: Any) -> TypeGuard[tuple[Any, ...]]:
    """Whether it records a file or a folder: kind, path, and each file's record."""
    return isinstance(value, tuple) and len(value) == 3 and str(value[0]).endswith("-stat-v2")


def _changed_files(then: tuple[Any, ...], now: tuple[Any, ...]) -> Iterator[str]:
    before, after = _files(then), _files(now)
    for path in [*before, *(path for path in after if path not in before)]:
        if path not in after or path not in before:
            yield f"{path} is {'gone' if path in before else 'new'}"
        elif before[path] != after[path]:
            yield _changed(path, before[path], after[path])


def _files(source: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """What is recorded of each file: how, its size, and its hash or time of change."""
    kind, path, records = source
    if kind.startswith("file"):
        records = [records]
    return {str(PurePath(path, name)): (how, *rest) for how, name, *rest in records}


def _changed(path: str, then: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    (how, size, mark), (_, size_now, _) = then, now
    if how != "stat":
        return f"{path} has other contents"
    if size != size_now:
        return f"{path} is another file"
    seconds, nanoseconds = divmod(mark, 10**9)
    return (
        f"{path} has another time of change (if it is the same file, give it back the one that it "
        f"had: touch -d @{seconds}.{nanoseconds:09d} {quote(path)})"
    )
