"""YAML in which a key that stands there twice is an error, as it always is a mistake."""

from __future__ import annotations

import pytest

from specforge_dstill.strict_yaml import RepeatedKeyError, load_yaml


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "s: {a: 1, a: 1}\n", "l: [{1: 1, 1: 2}]\n"])
def test_a_key_given_twice_is_refused(text: str) -> None:
    with pytest.raises(RepeatedKeyError, match="a second time"):
        load_yaml(text)


def test_what_a_merge_brings_may_be_replaced() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: {x: 1}\n"
    assert load_yaml(text) == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 1}}
