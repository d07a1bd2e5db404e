"""The command: files written, options refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from specforge_dstill.cli import main
from specforge_dstill.evaluation.report import Report
from specforge_dstill.reporting.settings import Method
from specforge_dstill.verbs.report import comparison
from tests.reporting.examples import example, score
from tests.reporting.test_serving import variants


def test_results_in_and_a_page_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        folder = tmp_path / f"seed{seed}"
        folder.mkdir()
        (folder / "results.json").write_text(example(more=seed).to_json())
    output = tmp_path / "report"
    words = [str(tmp_path / "seed0"), str(tmp_path / "seed1"), "--output", str(output)]
    assert main(["report", *words, "--compare", "teacher:3,student", "--title", "Tiny"]) == 0
    assert capsys.readouterr().out.split() == [f"{output}/report.html,", f"{output}/report.md"]
    text = (output / "report.md").read_text()
    assert text.startswith("# Tiny\n")
    assert "## teacher, 3 passes against student" in text
    assert "<h1>Tiny</h1>" in (output / "report.html").read_text()


def test_what_is_no_results_folder_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "none"), "--output", str(tmp_path / "report")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "report").exists()


def test_drafters_to_compare() -> None:
    found = comparison("student-k4:2,student")
    assert found.methods == (Method("student-k4", 2), Method("student", 1))
    assert found.least == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--compare=student,teacher:8"],
            "of teacher:8 was measured; there are: dflash, teacher, teacher:3, student, mine",
        ),
        (["--against=other"], "--against: no acceptance of other was measured; there are: dflash"),
        (["--compare=mine,dflash"], "--compare: mine, dflash were not measured with the same"),
    ],
)
def test_a_name_that_nothing_was_measured_of_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """Not left out without a word."""
    alone = Report(4, (score("mine", 1, [[1]], [[2]]),))
    for name, report in (("a", example()), ("b", alone)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(report.to_json())
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["report", *folders, *words, f"--output={tmp_path / 'report'}"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_drafters_of_servers_alone_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "servers.json").write_text(variants().to_json())
    words = ["report", str(tmp_path), f"--output={tmp_path / 'report'}"]
    assert main([*words, "--compare=student,student-root", "--against=student-root"]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    where = "tiny in vLLM, the template's default, T = 0, C = 16"
    assert f"## student against student-root, {where}" in text
    assert f"## Variants against student-root, {where}" in text
    assert main([*words, "--compare=student,teacher"]) == 2
    assert "of teacher was measured; there are: student-root, student" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["student", "a,a", "a,:2", "a:x,b", ""])
def test_no_comparison(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "results", "--compare", text]) == 2
    assert "--compare" in capsys.readouterr().err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    assert "specforge-dstill report --output report results/seed1" in capsys.readouterr().out
