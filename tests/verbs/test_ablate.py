"""The command, from a grid to its table: trainings are real, on the tiny target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specforge_dstill.ablations.grid import Grid, read_grid
from specforge_dstill.ablations.job import Job
from specforge_dstill.ablations.jobs import jobs_of
from specforge_dstill.ablations.notes import Note, begin, write_note
from specforge_dstill.ablations.schedule import Schedule
from specforge_dstill.cli import main
from specforge_dstill.verbs import ablate
from tests.ablations.grids import VARIANTS, write_grid
from tests.modes.running import write_run
from tests.reporting.examples import example
from tests.trained import texts, write_prompts


@pytest.fixture
def folder(tmp_path: Path, tiny_inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_run(tmp_path, tiny_inputs, training__num_epochs=1)
    write_prompts(tmp_path / "one.jsonl", [[text] for text in texts(4, seed=0)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_grid_becomes_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Shorter than its log interval: it has no curve.
    teacher = {**VARIANTS["teacher"], "training.log_interval": 1000}
    variants = {"teacher": teacher, "student": VARIANTS["student"]}
    path = write_grid(folder, variants=variants, seeds=[0], jobs=2)
    assert main(["ablate", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Variants against student" in out
    rows = [line.split()[0] for line in out.splitlines() if line.startswith(("teacher", "student"))]
    assert rows == ["teacher", "teacher,", "student"]
    assert (folder / "ablations" / "table.txt").read_text() in out
    page = (folder / "ablations" / "report" / "report.md").read_text()
    assert "## Variants against student" in page

    # One more variant: only it is trained, on the records that are there.
    more = {**variants, "student-ce": VARIANTS["student-ce"]}
    assert main(["ablate", str(write_grid(folder, variants=more, seeds=[0]))]) == 0
    captured = capsys.readouterr()
    assert "student-ce" in captured.out
    assert "3 of 5 jobs are done already" in captured.err
    trained = folder / "ablations" / "seed-0"
    assert len([*trained.glob("records-*")]) == 1
    assert all(json.loads(p.read_text())["done"] for p in trained.glob("*/job.json"))

    assert main(["ablate", str(write_grid(folder, variants=more, seeds=[0, 1])), "--plan"]) == 0
    plan = capsys.readouterr().out
    assert "# seed-0/teacher is done\n# seed-0/records-teacher is done\n" in plan
    assert "seed-0/teacher/" not in plan.replace("seed-0/teacher/teacher-latest", "")
    assert "output_dir=ablations/seed-1/teacher" in plan


def test_the_plan_starts_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ablate", str(write_grid(folder)), "--plan"]) == 0
    out = capsys.readouterr().out
    assert "# seed-1/student-k2" in out
    assert out.count("specforge.train --mode dstill_collect") == 4
    assert not (folder / "ablations").exists()


def test_a_failed_training_is_told_with_its_log(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "gone").mkdir()
    wrong = {"mine": {"mode": "dflash", "data.hidden_states_path": str(folder / "gone")}}
    path = write_grid(folder, variants=wrong, seeds=[0], reference="mine")
    assert main(["ablate", str(path)]) == 1
    err = capsys.readouterr().err
    assert f"{folder / 'gone'} holds no feature file" in err
    assert "1 jobs that need those were left" in err
    assert not (folder / "ablations" / "report").exists()


def test_seeds_that_are_whole_are_reported_though_another_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first seed failed; the second's curves are those of the page."""
    output = folder / "ablations"
    for seed in (0, 1):
        (output / f"seed-{seed}" / "results").mkdir(parents=True)
    (output / "seed-1/results/results.json").write_text(example().to_json())
    log = output / "seed-1" / "student" / "log.txt"
    log.parent.mkdir()
    log.write_text("step 1: {'loss': 2.0}\nstep 2: {'loss': 1.0}\n")
    failed = {"seed-0/student": "no such cache"}

    def work(grid: Grid, jobs: Sequence[Job]) -> Schedule:
        return Schedule(jobs, [], print, done={"seed-1/results"}, failed=failed)

    monkeypatch.setattr(ablate, "_work", work)
    assert main(["ablate", str(write_grid(folder))]) == 1
    shown = capsys.readouterr()
    assert "Variants against student" in shown.out
    assert "without seeds that were not trained and measured whole: 0" in shown.err
    assert "Seed 1." in (output / "report" / "report.html").read_text()


@pytest.mark.parametrize("prompts", [{"gsm8k": None}, {"mine": "hub:a/b"}])
def test_a_hub_out_of_reach_is_told_before_any_training_unless_all_is_measured(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prompts: dict[str, str | None],
) -> None:
    import datasets

    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route to host")

    def work(grid: Grid, jobs: Sequence[Job]) -> Schedule:
        return Schedule(jobs, [], print)

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    path = write_grid(folder, seeds=[0], evaluate={"prompts": prompts})
    assert main(["ablate", str(path)]) == 2
    told = capsys.readouterr().err
    assert f"grid.yaml: evaluate.prompts.{next(iter(prompts))}: " in told
    assert "no route to host" in told
    assert not (folder / "ablations").exists()

    monkeypatch.setattr(ablate, "_work", work)
    done: dict[str, Note] = {}
    for job in jobs_of(read_grid(path)):
        done[job.name] = replace(begin(job, done), done=True)
        write_note(job, done[job.name])
    assert main(["ablate", str(path)]) == 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"run": "gone.yaml"}, "run: no file gone.yaml (paths count from"),
        ({"evaluate": {"prompts": {"one": "gone.jsonl"}}}, "gone.jsonl"),
        ({"evaluate": {"prompts": {"one": None}}}, "evaluate.prompts.one: is no benchmark"),
        (
            {"variants": {**VARIANTS, "mine": {"mode": "dflash", "passes": [1, 99]}}},
            "variants.mine.passes: ",
        ),
    ],
)
def test_what_evaluation_would_refuse_is_told_before_any_training(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: Any, told: str
) -> None:
    assert main(["ablate", str(write_grid(folder, **changes))]) == 2
    assert told in capsys.readouterr().err
    assert not (folder / "ablations").exists()
