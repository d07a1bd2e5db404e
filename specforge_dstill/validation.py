"""Turns what pydantic says about a document into one line for its author.

The lines name the dotted key, the bad value and what is allowed, and for an unknown key the
nearest valid one, in whichever section that is.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from specforge_dstill.errors import UserError
from specforge_dstill.suggest import nearest_key

_TYPE_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}
_BOUND_WORDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_SHOWN_VALUE = 80


def submodel(annotation: Any) -> type[BaseModel] | None:
    """The model class that an annotation such as `Section | None` holds, if it holds one."""
    for member in (annotation, *get_args(annotation)):
        if isinstance(member, type) and issubclass(member, BaseModel):
            return member
    return None


def field_at(model: type[BaseModel], path: Sequence[str]) -> FieldInfo | None:
    """The field that a path of names leads to, or None."""
    owner: type[BaseModel] | None = model
    found: FieldInfo | None = None
    for name in path:
        found = owner.model_fields.get(name) if owner is not None else None
        if found is None:
            return None
        owner = submodel(found.annotation)
    return found


def dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key of a model and of the sections in it, each with its path: `student.alpha`."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        # A list of sections has no dotted keys: only a section that stands by itself.
        section = submodel(field.annotation) if get_origin(field.annotation) is not list else None
        if section is not None:
            keys += dotted_keys(section, f"{prefix}{name}.")
    return keys


def unknown_option(key: str, keys: Iterable[str]) -> UserError:
    """The error for a key that no section has."""
    close = nearest_key(key, keys)
    hint = f"; did you mean {close}?" if close else ""
    return UserError(f"{key}: unknown option{hint}")


def allowed(field: FieldInfo) -> str:
    """What a field takes, in words: `a number, at least 0 and at most 1`."""
    members = [field.annotation]
    if get_origin(field.annotation) in (Union, types.UnionType):
        members = list(get_args(field.annotation))
    words = []
    for member in members:
        if get_origin(member) is Literal:
            words.append("one of " + ", ".join(str(value) for value in get_args(member)))
        elif member is type(None):
            words.append("null")
        else:
            words.append(_TYPE_WORDS.get(member, "a list" if get_origin(member) is list else ""))
    bounds = [
        f"{word} {value:g}"
        for name, word in _BOUND_WORDS.items()
        for value in (getattr(item, name, None) for item in field.metadata)
        if value is not None
    ]
    kind = " or ".join(word for word in words if word)
    return f"{kind}, {' and '.join(bounds)}" if bounds else kind


def explain(
    error: ValidationError, model: type[BaseModel], *, prefix: str = "", keys: Iterable[str]
) -> UserError:
    """The first thing pydantic found, in one line, and how many more there are.

    Args:
        model: the class that was validated.
        prefix: what stands before its keys in the document, such as `dstill.`.
        keys: every valid dotted key of the document, to suggest from.
    """
    found = error.errors(include_url=False)
    first = found[0]
    path = [str(part) for part in first["loc"]]
    key = prefix + ".".join(path)
    if first["type"] == "extra_forbidden":
        message = str(unknown_option(key, keys))
    elif first["type"] == "missing":
        message = f"{key}: is required"
    elif first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        message = text if not path or text.startswith(key) else f"{key}: {text}"
    else:
        message = _wrong_value(key, path, first, model)
    more = f" ({len(found) - 1} more after this one)" if len(found) > 1 else ""
    return UserError(" ".join(message.split()) + more)


def _wrong_value(key: str, path: list[str], detail: Any, model: type[BaseModel]) -> str:
    shown = repr(detail["input"])
    if len(shown) > _SHOWN_VALUE:
        shown = shown[:_SHOWN_VALUE] + "…"
    field = field_at(model, path)
    if field is None:
        return f"{key}: {shown}: {detail['msg']}"
    if submodel(field.annotation) is not None:
        return f"{key}: {shown} is not a section of options"
    takes = allowed(field)
    return f"{key}: {shown} is not allowed; " + (f"give {takes}" if takes else detail["msg"])
