"""The chat template's keywords in requests to a server and in the settings of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specforge_dstill.errors import UserError

_KWARGS = "chat_template_kwargs"
_EFFORT = "reasoning_effort"


def template_options(template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request's body that tells the server the template's keywords."""
    if not template_kwargs:
        return {}
    options: dict[str, Any] = {_KWARGS: dict(template_kwargs)}
    if _EFFORT in template_kwargs:
        # For gpt-oss vLLM writes its own system message, and reads the effort here alone.
        options[_EFFORT] = template_kwargs[_EFFORT]
    return options


def refuse_template_options(extra_body: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
    """Raises: ``UserError`` for keywords in ``extra_body`` that ``kwargs`` do not tell the same.

    Capture shows the answers to the template with ``kwargs``, and would show another prompt.
    """
    for name in (_KWARGS, _EFFORT):
        if name in extra_body and extra_body[name] != template_options(kwargs).get(name):
            raise UserError(
                f"--extra-body: {name} is for the chat template, and capture must know of it; give "
                "it to --template-kwargs, from where it reaches the request, too"
            )


def in_template_kwargs(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of answers whose keywords stand under "template_kwargs", as they always do now."""
    extra = dict(settings.get("extra_body") or {})
    moved = {name: extra.pop(name) for name in (_KWARGS, _EFFORT) if name in extra}
    if not moved:
        return dict(settings)
    told = dict(settings.get("template_kwargs") or moved.pop(_KWARGS, None) or {})
    if _EFFORT in moved:
        told.setdefault(_EFFORT, moved[_EFFORT])
    return {**settings, "extra_body": extra, "template_kwargs": told}
