"""Options of a run file on the command line, `section.field=value`."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any, get_args

import yaml

from specforge_dstill.errors import UserError
from specforge_dstill.options import DstillOptions
from specforge_dstill.validation import field_at, unknown_option


def override(item: str, keys: Sequence[str]) -> dict[str, Any]:
    """One `section.field=value` as a document with that one value in it.

    Args:
        keys: every dotted key of a run file.

    Raises:
        UserError: another form, or a key that is none of them or that --mode sets.
    """
    key, equals, text = item.partition("=")
    if not equals:
        raise UserError(f"override {item!r} is not of the form section.field=value")
    if key == "training.strategy":
        raise UserError("training.strategy is what --mode sets; give --mode instead")
    if key not in keys or key == "modes":
        raise unknown_option(key, keys)
    nested: Any = _value(key, text)
    for name in reversed(key.split(".")):
        nested = {name: nested}
    return nested


def _value(key: str, text: str) -> object:
    """The value of an override. Scalars stay text: validation reads them as the field's type."""
    from specforge.config import Config

    root = DstillOptions if key.startswith("dstill.") else Config
    field = field_at(root, key.removeprefix("dstill.").split("."))
    members = () if field is None else (field.annotation, *get_args(field.annotation))
    if text in ("null", "none", "None") and NoneType in members:
        return None
    if str not in members and text.lstrip().startswith(("[", "{")):
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f"override {key}: {text!r} is not a YAML list or mapping") from None
    return text
