"""Accepted prefixes, and the share of the teacher's gain that a student keeps (Eq. 13)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specforge_dstill.maths.acceptance import accepted_prefix, recovery


def test_a_prefix_ends_at_the_first_miss() -> None:
    matches = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
    assert accepted_prefix(matches).tolist() == [2, 0, 4, 0]


@pytest.mark.parametrize("shape", [(0, 7), (3, 0)])
def test_no_block_and_no_position(shape: tuple[int, int]) -> None:
    lengths = accepted_prefix(torch.ones(shape, dtype=torch.bool))
    assert lengths.tolist() == [0] * shape[0]
    assert lengths.dtype == torch.int64


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5))
def test_against_the_loop(rows: list[list[bool]]) -> None:
    expected = []
    for row in rows:
        length = 0
        while length < len(row) and row[length]:
            length += 1
        expected.append(length)
    assert accepted_prefix(torch.tensor(rows)).tolist() == expected


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 11))
def test_one_more_match_never_shortens_a_prefix(row: list[bool], index: int) -> None:
    better = list(row)
    better[index % len(row)] = True
    assert accepted_prefix(torch.tensor([better]))[0] >= accepted_prefix(torch.tensor([row]))[0]


def test_the_two_figures_of_the_paper() -> None:
    # GPT-OSS-120B: 0.29 / 0.81. Nemotron: 0.26 / 0.91.
    gpt_oss = recovery(student_1=4.79, teacher_1=4.50, teacher_k=5.31)
    nemotron = recovery(student_1=5.36, teacher_1=5.10, teacher_k=6.01)
    assert f"{gpt_oss:.2%}" == "35.80%"
    assert f"{nemotron:.2%}" == "28.57%"


@pytest.mark.parametrize("teacher_k", [4.5, 4.2])
def test_without_a_gain_there_is_nothing_to_recover(teacher_k: float) -> None:
    assert recovery(student_1=4.8, teacher_1=4.5, teacher_k=teacher_k) is None


@given(st.floats(1, 10), st.floats(0.1, 5))
def test_the_ends_of_the_scale(teacher_1: float, gain: float) -> None:
    teacher_k = teacher_1 + gain
    none = recovery(student_1=teacher_1, teacher_1=teacher_1, teacher_k=teacher_k)
    full = recovery(student_1=teacher_k, teacher_1=teacher_1, teacher_k=teacher_k)
    assert (none, full) == (0.0, 1.0)
    # A student may also lose what the teacher had.
    worse = recovery(student_1=teacher_1 - gain, teacher_1=teacher_1, teacher_k=teacher_k)
    assert worse == pytest.approx(-1.0)
