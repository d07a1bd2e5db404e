"""The examples' grids: they read, and every command in them resolves."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from specforge_dstill.ablations.grid import read_grid
from specforge_dstill.ablations.job import Job
from specforge_dstill.ablations.jobs import jobs_of

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
#: All of the paper's comparisons, and the ablation of K.
ROWS = {
    *("dflash", "dflash-more", "teacher", "student", "student-root", "student-ce", "student-kd"),
    *("student-weighted", "student-k2", "student-k4"),
    *("dflash-decay", "dflash-decay-more", "teacher-decay", "student-decay"),
}
#: Of the small target alone: a teacher of twice the epochs, and what it is set against.
LONGER = {
    *("student-decay-weighted", "teacher-decay-more", "dflash-decay-long"),
    *("student-decay-more", "student-decay-more-weighted"),
}


@pytest.mark.parametrize(("name", "rows"), [("demo", ROWS), ("gsm8k", ROWS | LONGER)])
def test_a_grid_has_every_row_and_shares_what_it_can(
    name: str, rows: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("dstill.yaml", "ablations.yaml"):
        shutil.copy(EXAMPLES / name / file, tmp_path)
    monkeypatch.chdir(tmp_path)
    grid = read_grid(Path("ablations.yaml"))
    assert set(grid.variants) == rows
    jobs = {job.name: job for job in jobs_of(grid)}
    kinds = Counter(name.partition("/")[2] for name in jobs)
    teachers = {name for name in rows if name.startswith("teacher")}
    assert set(kinds) - rows == {
        *(f"records-{teacher}" for teacher in teachers),
        *("records-teacher-steps=2", "records-teacher-steps=4", "results"),
    }
    assert set(kinds.values()) == {3}
    check_more(jobs, "dflash")
    check_more(jobs, "dflash-decay")
    if name == "gsm8k":
        epochs = "training.num_epochs"
        longer = jobs["seed-0/dflash-decay-long"], jobs["seed-0/teacher-decay-more"]
        assert longer[0].settings[epochs] == longer[1].settings[epochs]


def check_more(jobs: dict[str, Job], baseline: str) -> None:
    """The baseline is trained on for as many steps as the student."""
    more, student = jobs[f"seed-0/{baseline}-more"].settings, jobs["seed-0/student"].settings
    for name in ("training.num_epochs", "training.learning_rate", "training.batch_size"):
        assert more[name] == student[name], name


def test_the_demos_dspark_grid_sets_like_against_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("dstill-dspark.yaml", "dspark.yaml"):
        shutil.copy(EXAMPLES / "demo" / file, tmp_path)
    monkeypatch.chdir(tmp_path)
    grid = read_grid(Path("dspark.yaml"))
    jobs = {job.name: job for job in jobs_of(grid)}
    assert {name.partition("/")[2] for name in jobs} == {
        *("dspark", "dspark-more", "teacher", "student", "student-l1"),
        *("records-teacher", "results"),
    }
    check_more(jobs, "dspark")
    first, teacher = jobs["seed-0/dspark"].settings, jobs["seed-0/teacher"].settings
    differing = {name for name in first if first[name] != teacher[name]}
    assert differing == {"training.strategy", "output_dir", "run_id"}


def test_table_6_at_the_papers_size_differs_in_the_root_schedule_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    grid = read_grid(Path("configs/gemma-4-26b-a4b/ablations.yaml"))
    jobs = {job.name.partition("/")[2]: job for job in jobs_of(grid)}
    cosine, root = jobs["student"].settings, jobs["student-root"].settings
    differing = {name for name in cosine if cosine[name] != root[name]}
    roots = {"dstill.student.p_root_start", "dstill.student.p_root_end"}
    assert differing == {*roots, "output_dir", "run_id"}
    assert {root[name] for name in roots} == {1}
    assert cosine["training.num_epochs"] == 16
    eighth = {settings["data.hidden_states_path"] for settings in (cosine, root)}
    eighth |= {job.settings.get("data.hidden_states_path") for job in jobs.values()} - {None}
    assert eighth == {"cache/gemma-4-26b-a4b-eighth"}
    text = Path("configs/gemma-4-26b-a4b/ablations.yaml").read_text(encoding="utf-8")
    assert f"--limit {-(-1_420_909 // 8)} " in text
