"""YAML whose sections name each key once: of two PyYAML takes the last without a word."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class RepeatedKeyError(yaml.constructor.ConstructorError):
    """A section names a key twice."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if isinstance(node, yaml.MappingNode):
            self._check(node)
        return super().construct_mapping(node, deep=deep)

    def _check(self, node: yaml.MappingNode) -> None:
        # What ``<<`` brings may be replaced, and is not yet among the keys.
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            name = (key.tag, key.value)
            if name in seen:
                problem = f"{key.value} is given a second time; remove one"
                raise RepeatedKeyError(None, None, problem, key.start_mark)
            seen.add(name)


def load_yaml(text: str) -> Any:
    """A document of plain values.

    Raises:
        RepeatedKeyError: a section names a key twice.
        yaml.YAMLError: it is no YAML.
    """
    return yaml.load(text, _Loader)
