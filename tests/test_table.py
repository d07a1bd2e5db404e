"""Tables, amounts and bars in plain text."""

from __future__ import annotations

from math import nan

import pytest

from specforge_dstill.table import NOTHING, bar, byte_text, number_text, spark, text_table, wrapped


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1524, "1.52 kB"),
        (9_999, "10.0 kB"),
        (118_030_336, "118 MB"),
        (999_700_000, "1.00 GB"),
        (35e12, "35.0 TB"),
        (3e21, "3000 EB"),
    ],
)
def test_bytes_have_three_digits_and_decimal_units(count: float, text: str) -> None:
    assert byte_text(count) == text


def test_a_number_that_is_not_there_is_a_dash() -> None:
    assert [number_text(value) for value in (2, -0.125, 1e4)] == ["2.00", "-0.12", "10000.00"]
    assert number_text(0.25, ".3f") == "0.250"
    assert [number_text(value, ".1f") for value in (None, nan)] == [NOTHING] * 2


def test_a_table() -> None:
    assert text_table(["name", "n", ""], [["a", "12", "█▌"], ["bc", "3", "█"]]) == (
        "name   n\n----  --\na     12  █▌\nbc     3  █"
    )


def test_bars_and_sparks_reach_from_nothing_to_all() -> None:
    assert [bar(share, width=2) for share in (-1, 0, 0.25, 0.5, 0.75, 1, 2)] == [
        *("", "", "▌", "█", "█▌", "██", "██")
    ]
    assert spark([0, 1, 4, 8]) == " ▁▄█"
    assert spark([0, 0]) == "  "
    assert spark([]) == ""


def test_words_are_wrapped_whole() -> None:
    assert wrapped(["one", "two", "three"], width=11) == "  one, two\n  three"
    assert wrapped([]) == ""
