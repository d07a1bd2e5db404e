"""Which commands a grid becomes, and what they share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from specforge_dstill.ablations.grid import Grid
from specforge_dstill.ablations.job import Job
from specforge_dstill.ablations.jobs import jobs_of
from specforge_dstill.errors import UserError
from tests.ablations.grids import VARIANTS, grid
from tests.data.caches import make_manifest
from tests.modes.running import write_run

ORDERED = ("teacher", "student", "student-ce", "student-k2", "dflash", "dflash-more")


@pytest.fixture
def small(tmp_path: Path, tiny_inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Grid:
    write_run(tmp_path, tiny_inputs)
    monkeypatch.chdir(tmp_path)
    return grid(tmp_path)


def by_name(jobs: list[Job]) -> dict[str, Job]:
    assert len({job.name for job in jobs}) == len(jobs)
    return {job.name: job for job in jobs}


def test_students_share_records_unless_they_ask_for_others(small: Grid) -> None:
    jobs = by_name(jobs_of(small))
    records = [name for name in jobs if "records" in name and name.startswith("seed-0")]
    assert records == ["seed-0/records-teacher", "seed-0/records-teacher-steps=2"]
    assert "seed-0/records-teacher" in jobs["seed-0/student"].needs
    assert "seed-0/records-teacher" in jobs["seed-0/student-ce"].needs
    assert "seed-0/records-teacher-steps=2" in jobs["seed-0/student-k2"].needs
    store = "dstill.trajectories=ablations/seed-0/records-teacher-steps=2/store"
    assert store in jobs["seed-0/student-k2"].command
    assert store in jobs["seed-0/records-teacher-steps=2"].command


@pytest.mark.parametrize("option", [{"data.max_length": 30}, {"data.hidden_states_path": "a/b"}])
def test_other_samples_have_other_records(
    small: Grid, tmp_path: Path, option: dict[str, Any]
) -> None:
    """A student would refuse those of the run file's cache, after all trainings before it."""
    jobs = by_name(
        jobs_of(grid(tmp_path, variants={**VARIANTS, "mine": {"from": "teacher"} | option}))
    )
    (records,) = [name for name in jobs["seed-0/mine"].needs if "records" in name]
    assert records != "seed-0/records-teacher"
    (word,) = [f"{name}={value}" for name, value in option.items()]
    assert word in jobs[records].command


def test_other_prompts_under_the_same_name_are_measured_anew(small: Grid, tmp_path: Path) -> None:
    def settings() -> Any:
        return by_name(jobs_of(small))["seed-0/results"].settings

    without = settings()
    (tmp_path / "one.jsonl").write_text('{"turns": ["a"]}\n')
    first = settings()
    assert first == settings() != without
    (tmp_path / "one.jsonl").write_text('{"turns": ["b"]}\n')
    assert settings() != first


def test_what_is_in_the_files_of_the_run_is_known(
    tmp_path: Path, tiny_inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another draft config, target or cache under the same name makes other drafters."""
    shutil.copyfile(tiny_inputs / "draft.json", tmp_path / "draft.json")
    shutil.copytree(tiny_inputs / "target", tmp_path / "target")
    caches = (tmp_path / "cache", tmp_path / "held-out")
    for folder in caches:
        folder.mkdir()
        make_manifest().write(folder)
    held_out = {"data__eval_hidden_states_path": "held-out", "training__eval_interval": 1}
    write_run(tmp_path, tmp_path, **held_out)
    monkeypatch.chdir(tmp_path)

    def known(name: str = "seed-0/student") -> Any:
        return by_name(jobs_of(grid(tmp_path)))[name].inputs

    def rewrite(path: Path, **changes: Any) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    first = known()
    assert first == known("seed-1/records-teacher") == known("seed-0/results")
    rewrite(tmp_path / "draft.json")  # the same, laid out in another way
    assert known() == first
    rewrite(tmp_path / "draft.json", num_hidden_layers=9)
    rewrite(tmp_path / "target" / "config.json", rope_theta=1)
    (tmp_path / "target" / "model.safetensors").write_text("other")
    for folder in caches:
        make_manifest(conversations_hash="other").write(folder)
    assert {name for name, value in known().items() if value != first[name]} == {
        "model.draft_model_config's sha256",
        "model.target_model_path's weights",
        "model.target_model_path's config",
        "data.hidden_states_path's conversations_hash",
        "data.eval_hidden_states_path's conversations_hash",
    }
    # What cannot be read is told by the trainings.
    (tmp_path / "draft.json").write_text("{")
    (tmp_path / "cache" / "manifest.json").write_text("{")
    shutil.rmtree(tmp_path / "target")
    assert {name.partition("'")[0] for name in known()} == {"data.eval_hidden_states_path"}
    shutil.rmtree(tmp_path / "held-out")
    (tmp_path / "draft.json").unlink()
    assert known() == {}


def test_every_job_comes_after_what_it_needs_and_every_seed_has_its_own(small: Grid) -> None:
    jobs = jobs_of(small)
    seen: set[str] = set()
    for job in jobs:
        assert seen.issuperset(job.needs), job.name
        seen.add(job.name)
    assert len(jobs) == 2 * (6 + 2 + 1)
    trained = by_name(jobs)["seed-1/dflash-more"]
    assert "training.seed=1" in trained.command
    assert trained.fresh == ("model.draft_checkpoint_path=ablations/seed-1/dflash/dflash-latest",)


def test_a_training_goes_on_from_its_checkpoint(small: Grid) -> None:
    job = by_name(jobs_of(small))["seed-0/dflash-more"]
    assert job.words()[-1] == job.fresh[0]
    assert job.latest is not None
    job.latest.mkdir(parents=True)
    assert job.words()[-1] == f"training.resume_from={job.latest}"
    assert not any(word.startswith("model.draft_checkpoint_path") for word in job.words())


def test_a_first_checkpoint_without_its_link_is_gone_on_from(small: Grid) -> None:
    job = by_name(jobs_of(small))["seed-0/dflash-more"]
    (job.folder / "dflash-more-step5").mkdir(parents=True)
    (job.folder / "dflash-more-step5" / "training_state.pt.tmp").touch()
    assert job.words()[-1] == job.fresh[0], "what a cut-off save left is none"
    (job.folder / "dflash-more-step5" / "training_state.pt").touch()
    resumed = job.words()[-1].removeprefix("training.resume_from=")
    assert Path(resumed).resolve() == (job.folder / "dflash-more-step5").resolve()


def test_settings_are_those_that_a_result_depends_on(small: Grid) -> None:
    jobs = by_name(jobs_of(small))
    assert "dstill.student.alpha" in jobs["seed-0/student"].settings
    for name in ("seed-0/teacher", "seed-0/records-teacher", "seed-0/dflash"):
        assert "dstill.student.alpha" not in jobs[name].settings
    assert "dstill.collect.top_k" in jobs["seed-0/records-teacher"].settings


def test_evaluations_share_answers_and_take_turns(small: Grid) -> None:
    jobs = by_name(jobs_of(small))
    first, second = jobs["seed-0/results"], jobs["seed-1/results"]
    assert first.in_turn == second.in_turn != ""
    assert second.needs == tuple(f"seed-1/{name}" for name in ORDERED), "not the seed before"
    assert {job.in_turn for job in jobs.values() if job not in (first, second)} == {""}
    for job in (first, second):
        words = list(job.command)
        assert words[words.index("--answers") + 1] == "ablations/answers"
    assert "student=ablations/seed-0/student/student-latest:1" in first.command
    assert "dflash-more=ablations/seed-0/dflash-more/dflash-more-latest:1" in first.command
    # Results of a variant that was taken out of the grid do not stop those of the others.
    assert "--overwrite" in first.command
    assert "--overwrite" not in first.settings["command"], "results made before stay done"
    # At one pass and at K, by evaluate's own default.
    assert "teacher=ablations/seed-0/teacher/teacher-latest" in first.command


def test_a_teacher_of_fewer_passes_is_measured_at_those(small: Grid, tmp_path: Path) -> None:
    mine = {"mode": "dstill_teacher", "dstill.steps": 2}
    jobs = by_name(jobs_of(grid(tmp_path, variants={**VARIANTS, "mine": mine})))
    assert "mine=ablations/seed-0/mine/mine-latest:1,2" in jobs["seed-0/results"].command


def test_a_large_target_is_measured_in_the_precision_that_it_fits_in(
    small: Grid, tmp_path: Path
) -> None:
    assert "--dtype" not in by_name(jobs_of(small))["seed-0/results"].command
    asked = {**small.evaluate.model_dump(), "dtype": "bfloat16"}
    words = by_name(jobs_of(grid(tmp_path, evaluate=asked)))["seed-0/results"].command
    assert words[words.index("--dtype") + 1] == "bfloat16"


def test_a_result_is_made_from_the_trainings_before_it(small: Grid) -> None:
    """Not from a collection, which is the same whenever it is made of the same teacher."""
    jobs = by_name(jobs_of(small))
    assert jobs["seed-1/student-k2"].sources == ("seed-1/teacher",)
    assert jobs["seed-1/records-teacher-steps=2"].sources == ("seed-1/teacher",)
    assert jobs["seed-1/teacher"].sources == ()
    assert set(jobs["seed-1/results"].sources) == {f"seed-1/{name}" for name in VARIANTS}


def test_online_students_need_no_records(small: Grid, tmp_path: Path) -> None:
    online = {"from": "teacher", "dstill.trajectories": "online"}
    jobs = by_name(jobs_of(grid(tmp_path, variants={**VARIANTS, "mine": online})))
    job = jobs["seed-0/mine"]
    assert job.needs == ("seed-0/teacher",)
    assert "dstill.student.teacher=ablations/seed-0/teacher/teacher-latest" in job.command


def test_an_option_that_no_section_has_is_told_before_anything_starts(
    small: Grid, tmp_path: Path
) -> None:
    wrong = {"from": "teacher", "dstill.student.alpah": 0}
    with pytest.raises(UserError, match=r"variants\.mine: .*did you mean dstill\.student\.alpha"):
        jobs_of(grid(tmp_path, variants={**VARIANTS, "mine": wrong}))


def test_the_words_before_a_training_can_be_the_users(small: Grid, tmp_path: Path) -> None:
    jobs = by_name(jobs_of(grid(tmp_path, launcher="srun -N 2 'my launcher'")))
    assert jobs["seed-0/dflash"].command[:5] == ("srun", "-N", "2", "my launcher", "-m")
