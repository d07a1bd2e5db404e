"""Running jobs: order, several at a time, failures, stops, and other settings than before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specforge_dstill.ablations.job import Job
from specforge_dstill.ablations.machine import alone_in, slots
from specforge_dstill.ablations.notes import read_notes
from specforge_dstill.ablations.schedule import Schedule
from specforge_dstill.errors import UserError
from specforge_dstill.verbs import ablate
from tests.ablations.grids import grid

NOTE = "import os, sys; open('{folder}/../order', 'a').write('{name} ')"


def job(folder: Path, name: str, *needs: str, program: str = "", **changes: Any) -> Job:
    """Writes its name to ``order`` and then runs ``program``."""
    home = folder / name
    note = NOTE.format(folder=home, name=name)
    return Job(
        **{
            "name": name,
            "folder": home,
            "command": (sys.executable, "-c", f"{note}\n{program}"),
            "needs": needs,
            "settings": {"alpha": 0.2},
            **changes,
        }
    )


def run(*jobs: Job, at_a_time: int = 1) -> tuple[Schedule, list[str]]:
    said: list[str] = []
    schedule = Schedule(jobs, [{"SLOT": str(i)} for i in range(at_a_time)], said.append)
    schedule.run()
    return schedule, said


def order(folder: Path) -> list[str]:
    return (folder / "order").read_text().split()


def test_jobs_run_after_what_they_need_and_once(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "b", "a"), job(tmp_path, "a"), job(tmp_path, "c", "b")]
    run(*jobs)
    schedule, said = run(*jobs)
    assert order(tmp_path) == ["a", "b", "c"]
    assert schedule.done == {"a", "b", "c"}
    assert said == ["3 of 3 jobs are done already"]


def test_several_run_at_a_time_each_in_its_place(tmp_path: Path) -> None:
    """Each waits until both have begun, so one after the other they would never end."""
    program = (
        "import time\n"
        "open(f'{here}/place', 'w').write(os.environ['SLOT'])\n"
        "while not all(os.path.exists(f'{here}/../{n}/place') for n in 'ab'): time.sleep(0.01)"
    )
    jobs = [
        job(
            tmp_path,
            name,
            program=program.replace("{here}", str(tmp_path / name)),
        )
        for name in "ab"
    ]
    schedule, _ = run(*jobs, at_a_time=2)
    assert schedule.done == {"a", "b"}
    assert {(tmp_path / n / "place").read_text() for n in "ab"} == {"0", "1"}


def test_a_failure_leaves_only_what_needs_it(tmp_path: Path) -> None:
    refusal = "print('specforge-dstill: error: no such cache'); print('torchrun says'); sys.exit(1)"
    jobs = [
        job(tmp_path, "bad", program=refusal),
        job(tmp_path, "after", "bad"),
        job(tmp_path, "good"),
    ]
    schedule, _ = run(*jobs)
    assert schedule.failed == {"bad": f"no such cache (log: {tmp_path}/bad/log.txt)"}
    assert schedule.done == {"good"}
    assert order(tmp_path) == ["bad", "good"]


def trainings(folder: Path) -> list[Job]:
    """A teacher, its records, a student of them, and what measures both."""
    save = "from pathlib import Path; Path('{0}').mkdir(exist_ok=True)"

    def training(name: str, *needs: str, sources: tuple[str, ...] = ()) -> Job:
        latest = folder / name / f"{name}-latest"
        program = save.format(latest)
        return job(folder, name, *needs, program=program, latest=latest, sources=sources)

    return [
        training("teacher"),
        job(folder, "records", "teacher", sources=("teacher",)),
        training("student", "teacher", "records", sources=("teacher",)),
        job(folder, "results", "teacher", "student", sources=("teacher", "student"), remade=True),
    ]


def test_a_training_without_its_checkpoint_is_not_done(tmp_path: Path) -> None:
    """Such as one that a launcher put into a queue and did not wait for."""
    teacher, *others = trainings(tmp_path)
    queued = replace(teacher, command=(sys.executable, "-c", ""))
    schedule, said = run(queued, *others)
    assert schedule.done == set()
    assert said[-1].startswith(f"teacher failed: it ended without its checkpoint {teacher.latest};")
    assert run(teacher, *others)[0].done == {"teacher", "records", "student", "results"}


def test_a_checkpoint_that_is_gone_is_missed_by_what_needs_it_alone(tmp_path: Path) -> None:
    jobs = trainings(tmp_path)
    run(*jobs)
    shutil.rmtree(tmp_path / "teacher" / "teacher-latest")
    assert run(*jobs)[1] == ["4 of 4 jobs are done already"]
    # Its students are done, so that the collection's needs are nobody's.
    shutil.rmtree(tmp_path / "records")
    assert set(read_notes(jobs)) == {"teacher", "student", "results"}
    more = job(tmp_path, "more", "teacher", sources=("teacher",))
    told = f"{tmp_path}/teacher/teacher-latest is missing, and more needs it; put it back, or "
    with pytest.raises(UserError, match=f"{told}remove {tmp_path}/teacher to"):
        run(*jobs, more)


def test_jobs_that_take_turns_do_not_run_together(tmp_path: Path) -> None:
    """Each looks for the other's mark; a third one beside them does not wait."""
    program = (
        "import time\n"
        "mark = '{here}/../turn'\n"
        "assert not os.path.exists(mark)\n"
        "open(mark, 'w').close(); time.sleep(0.3); os.remove(mark)"
    )
    jobs = [
        job(tmp_path, name, program=program.format(here=tmp_path / name), in_turn="answers")
        for name in "ab"
    ]
    schedule, _ = run(*jobs, job(tmp_path, "c"), at_a_time=3)
    assert schedule.done == {"a", "b", "c"}, schedule.failed
    assert order(tmp_path).index("c") < 2
    # One that fails does not keep the other from its turn.
    failing = [job(tmp_path, "d", program="sys.exit(1)", in_turn="answers"), *jobs]
    shutil.rmtree(tmp_path / "a")
    schedule, _ = run(*failing)
    assert (schedule.done, set(schedule.failed)) == ({"a", "b"}, {"d"})


def test_a_failed_job_is_tried_again(tmp_path: Path) -> None:
    program = "sys.exit(not os.path.exists('{0}/../mended'))"
    one = job(tmp_path, "one", program=program.format(tmp_path / "one"))
    assert run(one)[0].failed
    (tmp_path / "mended").touch()
    assert run(one)[0].done
    assert json.loads((tmp_path / "one" / "job.json").read_text())["done"]
    assert (tmp_path / "one" / "log.txt").read_text().count("$ ") == 2


def test_another_setting_is_refused_before_anything_starts(tmp_path: Path) -> None:
    run(job(tmp_path, "one"))
    others = [job(tmp_path, "new"), job(tmp_path, "one", settings={"alpha": 1})]
    with pytest.raises(UserError, match=r"one was made with alpha 0\.2, now it is 1; remove"):
        run(*others)
    assert order(tmp_path) == ["one"]


def test_another_cache_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """What is known of both counts: a note may be an earlier version's, a cache be removed."""
    cache = {"data.hidden_states_path's conversations_hash": "ab"}
    run(job(tmp_path, "one", inputs=cache))
    for known in (cache, {}, {**cache, "model.target_model_path's weights": "ef"}):
        assert run(job(tmp_path, "one", inputs=known))[1] == ["1 of 1 jobs are done already"]
    told = 'one was made with data.hidden_states_path.s conversations_hash "ab", now it is "cd";'
    with pytest.raises(UserError, match=told):
        run(job(tmp_path, "one", inputs=dict.fromkeys(cache, "cd")))


def test_inputs_may_be_mended_until_a_training_has_saved(tmp_path: Path) -> None:
    """It may have refused them; then there is nothing to lose."""
    latest = tmp_path / "one" / "one-latest"

    def one(draft: int, program: str) -> Job:
        return job(tmp_path, "one", inputs={"draft": draft}, latest=latest, program=program)

    assert run(one(1, "sys.exit(1)"))[0].failed
    assert run(one(2, f"os.makedirs('{latest}'); sys.exit(1)"))[0].failed
    with pytest.raises(UserError, match="was made with draft 2, now it is 3"):
        run(one(3, ""))


def test_the_output_folder_may_be_moved(tmp_path: Path) -> None:
    def settings(output: str, start: str) -> dict[str, str]:
        return {
            "output_dir": f"{output}/seed-0/one",
            "model.draft_checkpoint_path": f"{output}/seed-0/{start}/{start}-latest",
        }

    run(job(tmp_path, "one", settings=settings("ablations", "teacher")))
    moved = job(tmp_path, "one", settings=settings("/else/where", "teacher"))
    assert run(moved)[1] == ["1 of 1 jobs are done already"]
    other = job(tmp_path, "one", settings=settings("/else/where", "other"))
    with pytest.raises(UserError, match=r"was made with model\.draft_checkpoint_path"):
        run(other)


def test_an_option_that_came_later_is_at_its_default(tmp_path: Path) -> None:
    """A newer version's options must not part a user from what is trained already."""
    run(job(tmp_path, "one", settings={"dstill.steps": 8, "dstill.student.gone": 1}))
    later = {"dstill.steps": 8, "dstill.student.l1_alpha": 0.0}
    assert run(job(tmp_path, "one", settings=later))[1] == ["1 of 1 jobs are done already"]
    with pytest.raises(UserError, match=r"l1_alpha unset, now it is 0\.5"):
        run(job(tmp_path, "one", settings={**later, "dstill.student.l1_alpha": 0.5}))


def test_an_evaluation_of_more_drafters_is_made_again(tmp_path: Path) -> None:
    run(job(tmp_path, "one", remade=True))
    run(job(tmp_path, "one", remade=True, settings={"drafters": 2}))
    assert order(tmp_path) == ["one", "one"]


def test_what_was_made_from_a_removed_training_is_named_not_kept(tmp_path: Path) -> None:
    """Silently kept, a student would stand in the table beside a teacher that it never had."""
    jobs = [
        job(tmp_path, "teacher"),
        job(tmp_path, "records", "teacher", sources=("teacher",)),
        job(tmp_path, "student", "teacher", "records", sources=("teacher",)),
        job(tmp_path, "second", "student", sources=("student",)),
        job(tmp_path, "other"),
    ]
    run(*jobs)
    shutil.rmtree(tmp_path / "teacher")
    for _ in range(2):  # also once the teacher is another one
        with pytest.raises(UserError, match="student was made") as raised:
            run(*jobs[:1], *jobs[2:])
        assert f"remove {tmp_path}/student, {tmp_path}/second to" in str(raised.value)
        run(jobs[0])
    # A collection removed to make room is the same when it is made again.
    for name in ("records", "student", "second"):
        shutil.rmtree(tmp_path / name)
    run(*jobs)
    shutil.rmtree(tmp_path / "records")
    run(*jobs)
    assert order(tmp_path)[-4:] == ["records", "student", "second", "records"]


def test_an_evaluation_of_other_weights_is_made_again(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, "one"),
        job(tmp_path, "results", "one", sources=("one",), remade=True),
        job(tmp_path, "next", "results", remade=True),
    ]
    run(*jobs)
    shutil.rmtree(tmp_path / "one")
    run(*jobs)
    assert order(tmp_path) == ["one", "results", "next", "one", "results"]


def test_a_training_that_goes_on_is_the_same_one(tmp_path: Path) -> None:
    program = "sys.exit(not os.path.exists('{0}/../mended'))"
    jobs = [
        job(tmp_path, "one", program=program.format(tmp_path / "one")),
        job(tmp_path, "two", "one", sources=("one",)),
    ]
    run(*jobs)
    begun = json.loads((tmp_path / "one" / "job.json").read_text())["begun"]
    (tmp_path / "mended").touch()
    run(*jobs)
    assert json.loads((tmp_path / "one" / "job.json").read_text())["begun"] == begun
    assert json.loads((tmp_path / "two" / "job.json").read_text())["sources"] == {"one": begun}


def test_notes_of_earlier_versions_are_read(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "one"), job(tmp_path, "two", "one", sources=("one",))]
    run(*jobs)
    for name in ("one", "two"):
        path = tmp_path / name / "job.json"
        note = json.loads(path.read_text())
        kept = {name: note[name] for name in ("settings", "done")}
        path.write_text(json.dumps({**kept, "seconds": 3.5}))
    assert run(*jobs)[1] == ["2 of 2 jobs are done already"]
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(UserError, match="two was made"):
        run(*jobs)


def test_a_launcher_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot start 'no-such-launcher': .*launcher:"):
        run(job(tmp_path, "one", command=("no-such-launcher", "-m")))


def test_a_damaged_note_is_told(tmp_path: Path) -> None:
    run(job(tmp_path, "one"))
    (tmp_path / "one" / "job.json").write_text("{")
    with pytest.raises(UserError, match=r"job\.json: cannot be read"):
        run(job(tmp_path, "one"))


def test_a_stop_ends_the_jobs_and_the_next_run_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from specforge_dstill.console import exit_status\n"
        "from specforge_dstill.ablations.job import Job\n"
        "from specforge_dstill.ablations.schedule import Schedule\n"
        f"folder = Path({str(tmp_path)!r})\n"
        'program = \'import os, time; open(f"{0}/pid", "w").write(str(os.getpid())); '
        "time.sleep(60)'.replace('{0}', str(folder))\n"
        "one = Job('one', folder / 'one', (sys.executable, '-c', program))\n"
        "sys.exit(exit_status(lambda: Schedule([one], [{}], print).run() or 0))\n"
    )
    command = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 300  # a busy machine imports slowly
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    command.send_signal(signal.SIGTERM)
    _, told = command.communicate(timeout=30)
    assert command.returncode == 128 + signal.SIGTERM
    assert "run the same command again to go on" in told
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert not json.loads((tmp_path / "one" / "job.json").read_text())["done"]


def test_two_commands_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        alone_in(tmp_path),
        pytest.raises(UserError, match="in use by another"),
        alone_in(tmp_path),
    ):
        pass


def test_a_job_that_outlives_its_command_holds_the_folder(tmp_path: Path) -> None:
    with alone_in(tmp_path) as lock:
        left = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            pass_fds=(lock,),
        )
    with pytest.raises(UserError, match="left running"), alone_in(tmp_path):
        pass
    left.communicate(b"")
    with alone_in(tmp_path):
        pass


def test_a_launcher_is_told_nothing_of_this_machine(tmp_path: Path) -> None:
    """srun and its like hand this host's thread count on to nodes with many more cores."""
    started = grid(tmp_path, launcher="srun -N 2", jobs=2)
    places = slots(jobs=started.jobs, ranks=1, gpus=ablate._gpus(started), env={})
    assert places == [{}, {}]


def test_places_on_gpus_and_on_cores() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    assert [p["CUDA_VISIBLE_DEVICES"] for p in slots(jobs=2, ranks=2, gpus=4, env=env)] == [
        "4,5",
        "6,7",
    ]
    assert slots(jobs=1, ranks=2, gpus=4, env={})[0] == {"CUDA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(UserError, match="need 6 GPUs, and 4 are here"):
        slots(jobs=3, ranks=2, gpus=4, env={})
    alone = slots(jobs=10_000, ranks=1, gpus=0, env={})[0]
    assert alone["OMP_NUM_THREADS"] == "1"
    assert slots(jobs=1, ranks=1, gpus=0, env={"OMP_NUM_THREADS": "3"})[0]["OMP_NUM_THREADS"] == "3"
