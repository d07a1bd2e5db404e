"""Chat templates by name: the tokenizer's own, and SpecForge's."""

from __future__ import annotations

import difflib
import hashlib
from typing import Any

from specforge_dstill.errors import UserError

#: The name that stands for the tokenizer's own chat template.
OWN_TEMPLATE = "tokenizer"


def template_names() -> list[str]:
    """Names of SpecForge's chat templates."""
    from specforge.data.template import TEMPLATE_REGISTRY

    return sorted(TEMPLATE_REGISTRY.get_all_template_names())


def template_hash(tokenizer: Any, template: str) -> str:
    """Hash (16 hex digits) of what defines the template."""
    if template == OWN_TEMPLATE:
        text = str(tokenizer.get_chat_template())
    else:
        text = named_template(template).model_dump_json()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def named_template(name: str) -> Any:
    """One of SpecForge's. Raises: ``UserError`` with the names there are, nearest first."""
    from specforge.data.template import TEMPLATE_REGISTRY

    names = template_names()
    if name in names:
        return TEMPLATE_REGISTRY.get(name)
    near = difflib.get_close_matches(name, names, n=len(names), cutoff=0.0)
    raise UserError(
        f"unknown chat template {name!r}; nearest first: {', '.join(near)}; "
        f"or {OWN_TEMPLATE!r} for the tokenizer's own"
    )
