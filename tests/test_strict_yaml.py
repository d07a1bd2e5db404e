"""YAML in which a key that stands there twice, or is no text, is an error: always a mistake."""

from __future__ import annotations

import pytest

from specforge_dstill.strict_yaml import KeyMistakeError, load_yaml


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "s: {a: 1, a: 1}\n", "l: [{x: 1, x: 2}]\n"])
def test_a_key_given_twice_is_refused(text: str) -> None:
    with pytest.raises(KeyMistakeError, match="a second time"):
        load_yaml(text)


@pytest.mark.parametrize(
    ("key", "kind"), [("on", "bool"), ("No", "bool"), ("7", "int"), ("1.5", "float"), ("~", "null")]
)
def test_a_key_that_is_no_text_is_refused(key: str, kind: str) -> None:
    for text in (f"{key}: 1\n", f"a: [{{{key}: 1}}]\n"):
        with pytest.raises(KeyMistakeError, match=f"reads the key {key} as {kind}, .*; quote it"):
            load_yaml(text)
    assert load_yaml(f"'{key}': on\n") == {key: True}


def test_what_a_merge_brings_may_be_replaced() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: {x: 1}\n"
    assert load_yaml(text) == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 1}}
