"""What the serving example takes for explained, and what it reports; needs no engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest


def compared(example: Any, **changes: Any) -> Any:
    """Two answers of 3 and 4 tokens in 3 rounds; the first ends with a drafted stop token."""
    tokens = ((7, 8, 2), (7, 8, 9, 2))
    ours = example.Answers("specforge_dstill", tokens, 3, 3)
    here = example.Here(ours, uncut=4, stopped=1, greedy=tokens)
    others = {
        "dflash": example.Answers("dflash", tokens, 3, 2),
        "vllm": example.Answers("vllm", tokens, 3, 4),
    }
    for name, change in changes.items():
        others[name] = replace(others[name], **change)
    return example.Compared("student", here, tuple(others.values()))


def test_each_engines_own_counting_is_no_fault(example: Any) -> None:
    found = compared(example)
    assert not list(found.faults())
    assert [row[2:] for row in found.rows()] == [
        ("3", "3", "2.000", "2/2"),
        ("3", "2", "1.667", "2/2"),
        ("3", "4", "2.333", "2/2"),
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"vllm": {"rounds": 4}}, "student in vllm: 4 rounds, ours 3"),
        ({"vllm": {"accepted": 3}}, "student in vllm: accepted 3, not 4"),
        ({"dflash": {"accepted": 3}}, "student in dflash: accepted 3, not 2"),
        ({"dflash": {"tokens": ((7,), (8,))}}, "student in dflash: other tokens than the target"),
    ],
)
def test_what_counting_does_not_explain_is_reported(
    example: Any, changes: dict[str, Any], told: str
) -> None:
    (fault,) = compared(example, **changes).faults()
    assert fault.startswith(told)
