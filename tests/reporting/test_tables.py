"""The paper's shapes: which columns and rows there are, and what is left out."""

from __future__ import annotations

from math import nan

import pytest

from specforge_dstill.evaluation.intervals import Estimate, Interval
from specforge_dstill.evaluation.report import Report, Score
from specforge_dstill.reporting.comparison_tables import PAPERS, comparison_table
from specforge_dstill.reporting.main_tables import table_1, table_4
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.settings import settings_of
from specforge_dstill.reporting.tables import Number
from tests.reporting.examples import decoded, example, texts


def quantities(*reports: Report) -> list[Quantities]:
    return [Quantities(setting) for setting in settings_of(enumerate(reports))]


def test_numbers_in_words() -> None:
    estimate = Estimate(-0.5, Interval(-1.004, 0.004), Interval(1, 2), 3)
    assert Number(estimate).text == "−0.50"
    assert Number(estimate).intervals == ("[−1.00, 0.00]", "{1.00, 2.00}")
    assert Number(Estimate(0.25), "×").text == "0.25×"
    assert Number(Estimate(0.25, Interval(-1, 1)), signed=True).intervals == ("[−1.00, +1.00]",)
    assert (Number(Estimate(nan)).text, Number(Estimate(nan)).intervals) == ("–", ())


def test_table_4() -> None:
    (table,) = table_4(quantities(example()))
    assert table.header == (
        *("Target", "Drafter", "Steps", "easy", "hard", "Average", "Recovery (%)"),
    )
    assert table.names == 3
    assert [texts(row) for row in table.rows] == [
        ["tiny", "dflash", "1", "1.83", "1.67", "1.75", "–"],
        ["tiny", "teacher", "1", "2.17", "2.00", "2.08", "–"],
        ["tiny", "teacher", "3", "3.17", "3.00", "3.08", "–"],
        ["tiny", "student", "1", "2.50", "2.67", "2.58", "50.00"],
    ]


def test_one_data_set_has_no_average_and_no_student_no_recovery() -> None:
    report = example()
    alone = [Score("dflash", 1, {"easy": report.scores[0].walks["easy"]})]
    (table,) = table_4(quantities(Report(4, tuple(alone), report.details)))
    assert table.header == ("Target", "Drafter", "Steps", "easy")


def test_settings_share_a_table_and_are_told_apart_by_what_differs() -> None:
    (table,) = table_4(quantities(example(), example(template_kwargs={})))
    assert table.header[:4] == ("Setting", "Target", "Reasoning", "Drafter")
    assert {texts(row)[0] for row in table.rows} == {"A", "B"}
    (table,) = table_4(quantities(example(), decoded(1.0)))
    assert table.header[:4] == ("Setting", "Target", "Temperature", "Drafter")


def test_table_1_is_of_what_was_timed() -> None:
    assert list(table_1(quantities(example()))) == []
    (table,) = table_1(quantities(example(), decoded()))
    assert table.header == (
        *("Setting", "Target", "Method", "Params (M)"),
        *("easy S", "easy τ", "hard S", "hard τ", "Average S", "Average τ"),
    )
    (row,) = table.rows
    numbers = ["3.00×", "2.67", "3.00×", "2.50", "3.00×", "2.58"]
    assert texts(row) == ["B", "tiny", "student", "–", *numbers]


@pytest.mark.parametrize(
    ("parameters", "told"), [(785_000_000, "785"), (1_536_400_000, "1536"), (575_432, "0.575")]
)
def test_table_1_tells_the_drafters_parameters(parameters: int, told: str) -> None:
    checkpoints = {"student": {"weights": "x", "parameters": parameters}}
    (table,) = table_1(quantities(decoded(checkpoints=checkpoints)))
    assert told in texts(table.rows[0])


@pytest.mark.parametrize(
    ("drafters", "titles", "papers"),
    [
        (["dflash", "dflash-more", "student"], ["Table 5"], "10 epochs instead of 5"),
        (["dflash", "student"], [], ""),
        (["student-root", "student"], ["Table 6"], "p_root = 1 for student-root"),
        (["student-ce", "student", "student-kd"], ["Table 7"], "α = 0.2 for student"),
        (["student", "student-weighted"], ["Table 8"], "student-weighted with"),
    ],
)
def test_the_papers_comparisons(drafters: list[str], titles: list[str], papers: str) -> None:
    """Columns bear the drafters' own names: nobody knows with which options they were trained."""
    walks = example().scores[0].walks
    report = Report(4, tuple(Score(name, 1, walks) for name in drafters))
    (one,) = quantities(report)
    tables = [table for paper in PAPERS for table in comparison_table(one, paper)]
    assert [title for title in titles for table in tables if title in table.title] == titles
    assert len(tables) == len(titles)
    for table in tables:
        assert table.header[1 : len(drafters) + 1] == tuple(drafters)
        assert [note for note in table.notes if note.startswith("The paper: ") and papers in note]
        assert [row[0] for row in table.rows] == ["easy", "hard", "Average"]
        assert len(table.rows[0]) == len(table.header)
        assert ("Δ" in table.header) == (len(drafters) == 2)


def test_a_difference_is_paired() -> None:
    scores = example().scores
    report = Report(
        4, (Score("student", 1, scores[1].walks), Score("student-weighted", 1, scores[2].walks))
    )
    (one,) = quantities(report)
    (table,) = comparison_table(one, PAPERS[3])
    # One more token in each round, whatever the prompts.
    assert texts(table.rows[0]) == ["easy", "2.17", "3.17", "+1.00"]
    difference = table.rows[0][3]
    assert isinstance(difference, Number)
    assert difference.intervals == ("[+1.00, +1.00]",)
