"""The report: averages, recovery, the table, and the file it can be redrawn from."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path

import pytest

from specforge_dstill.evaluation.plots import plot_acceptance
from specforge_dstill.evaluation.replay import Walk
from specforge_dstill.evaluation.report import Report, Score, report_from_json, teacher_of
from specforge_dstill.evaluation.serving import ServingReport


def score(drafter: str, steps: int, easy: tuple[int, ...], hard: tuple[int, ...]) -> Score:
    return Score(drafter, steps, {"easy": [Walk("e1", easy)], "hard": [Walk("h1", hard)]})


def example() -> Report:
    return Report(
        4,
        (
            score("dflash", 1, (2, 1), (1, 0, 0, 0)),  # 2.50 1.25
            score("teacher", 1, (2, 2), (1, 0, 0, 1)),  # 3.00 1.50
            score("teacher", 3, (3, 3), (1, 1, 1, 1)),  # 4.00 2.00
            score("student", 1, (3, 2), (1, 0, 1, 1)),  # 3.50 1.75
            score("student", 3, (3, 2), (1, 0, 1, 1)),
            score("student-b", 1, (2, 1), (1, 0, 0, 1)),  # 2.50 1.50
        ),
        {"target": "tiny"},
    )


def test_the_average_is_over_data_sets_not_rounds() -> None:
    dflash = example().scores[0]
    assert dflash.tau == {"easy": 2.5, "hard": 1.25}
    assert dflash.average == 1.875
    # "hard" has twice the rounds of "easy", and counts as much.
    assert dflash.by_position(block_size=4) == [(1 + 1 / 4) / 2, 1 / 4, 0]
    assert dflash.average == 1 + sum(dflash.by_position(block_size=4))


def test_recovery_by_hand() -> None:
    report = example()
    found = [report.recovery(score) for score in report.scores]
    # Teacher 2.25 and 3.00, student 2.625, student-b 2.00.
    assert found == [None, None, None, 0.5, None, pytest.approx(-1 / 3)]


def test_a_student_is_held_against_the_teacher_of_its_own_name() -> None:
    own = (
        score("teacher-b", 1, (1, 1), (1, 0, 0, 1)),  # 2.00 1.50
        score("teacher-b", 3, (3, 3), (1, 0, 0, 1)),  # 4.00 1.50
    )
    report = Report(4, (*example().scores, *own))
    found = {s.drafter: report.recovery(s) for s in report.scores if s.steps == 1}
    # Teacher-b 1.75 and 2.75, student-b 2.00; the other as before.
    assert (found["student-b"], found["student"], found["teacher-b"]) == (0.25, 0.5, None)
    assert teacher_of("student-c", ["teacher", "teacher-b"]) == "teacher"
    assert teacher_of("student-b-c", ["teacher", "teacher-b", "teacher-c"]) == "teacher-b"
    assert teacher_of("student-bc", ["teacher-b"]) == "teacher"


def test_no_recovery_without_a_gain_or_a_teacher() -> None:
    one = example().scores
    assert Report(4, (one[1], one[3])).recovery(one[3]) is None
    assert Report(4, (one[2], one[3])).recovery(one[3]) is None
    assert Report(4, (one[3],)).recovery(one[3]) is None


def test_the_table_has_the_shape_of_table_4() -> None:
    lines = example().text().splitlines()
    assert lines[0].split() == ["Drafter", "Passes", "easy", "hard", "Average", "Recovery", "%"]
    assert lines[2].split() == ["dflash", "1", "2.50", "1.25", "1.88", "–"]
    assert lines[5].split() == ["student", "1", "3.50", "1.75", "2.62", "50.00"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_json_gives_the_report_back() -> None:
    report = example()
    text = report.to_json()
    again = report_from_json(text)
    assert again.text() == report.text()
    assert again.to_json() == text
    content = json.loads(text)
    assert content["details"] == {"target": "tiny"}
    first = content["scores"][0]["data_sets"]["hard"]
    assert first["accepted"] == {"h1": [1, 0, 0, 0]}
    assert (first["answers"], first["rounds"], first["tau"]) == (1, 4, 1.25)
    assert '"e1": [2, 1]' in text, "lists of numbers stay on a line"


def test_a_text_in_the_details_is_written_as_it_is() -> None:
    told = {"note": "a list: [ 1,   2 ]", "none": {}, "é": [None, 1.5], "deep": [[1], {"a": "b"}]}
    text = Report(4, (), told).to_json()
    assert json.loads(text)["details"] == told
    assert '\n  "deep": [\n   [1],\n   {\n    "a": "b"\n   }\n  ]\n },' in text
    with pytest.raises(ValueError, match="not JSON compliant"):
        Report(4, (), {"nan": [float("nan")]}).to_json()


def test_a_data_set_without_rounds() -> None:
    report = Report(4, (Score("d", 1, {"empty": [Walk("e1", ())]}),))
    assert json.loads(report.to_json())["scores"][0]["average"] is None
    assert report.text().splitlines()[2].split() == ["d", "1", "–", "–", "–"]
    (found,) = json.loads(report.to_json())["scores"]
    assert found["by_position"] == found["data_sets"]["empty"]["by_position"] == [None] * 3


def test_a_data_set_without_rounds_takes_no_part_in_the_acceptance_by_position() -> None:
    one = Score("d", 1, {"empty": [Walk("e1", ())], "easy": [Walk("e2", (3, 1))]})
    assert one.by_position(block_size=4) == [1, 1 / 2, 1 / 2]
    assert isnan(one.average)


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 99}', "nothing"])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"format 1|Expecting value"):
        report_from_json(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ServingReport(()).to_json(), "lacks 'scores'"),
        ('{"format": 1, "scores": [], "details": {}}', "lacks 'block_size'"),
        ('{"format": 1, "scores": [{"drafter": "d", "steps": 1}]}', "lacks 'data_sets'"),
        ('{"format": 1, "scores": 3}', "not iterable"),
        ('{"format": 1, "scores": [{"drafter": "d", "steps": 1, "data_sets": []}]}', "items"),
    ],
)
def test_what_a_file_lacks_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^not an evaluation's results: .*{said}"):
        report_from_json(text)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_picture(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"acceptance{suffix}"
    plot_acceptance(example(), path)
    assert path.stat().st_size > 5_000
    if suffix == ".svg":
        # Text is drawn as outlines; its words stand in comments.
        drawn = path.read_text()
        assert all(f"<!-- {word} -->" in drawn for word in ("easy", "Average", "teacher, 3 passes"))
