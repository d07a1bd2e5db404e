"""YAML whose sections name each key once, by a text.

Of two keys PyYAML takes the last without a word, and a bare ``on`` or ``no`` it takes for a bool.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"


class KeyMistakeError(yaml.constructor.ConstructorError):
    """A section names a key twice, or by what YAML reads as no text."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if isinstance(node, yaml.MappingNode):
            self._check(node)
        return super().construct_mapping(node, deep=deep)

    def _check(self, node: yaml.MappingNode) -> None:
        # What ``<<`` brings may be replaced, and is not yet among the keys.
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == f"{_TAG}merge":
                continue
            if key.tag != f"{_TAG}str":
                kind = key.tag.removeprefix(_TAG)
                problem = f"YAML reads the key {key.value} as {kind}, not as text; quote it"
                raise KeyMistakeError(None, None, problem, key.start_mark)
            if key.value in seen:
                problem = f"{key.value} is given a second time; remove one"
                raise KeyMistakeError(None, None, problem, key.start_mark)
            seen.add(key.value)


def load_yaml(text: str) -> Any:
    """A document of plain values.

    Raises:
        KeyMistakeError: a section names a key twice, or by what is no text.
        yaml.YAMLError: it is no YAML.
    """
    return yaml.load(text, _Loader)
