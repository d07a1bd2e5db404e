"""Whole runs of the student without a store, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.modes.conftest import Stages, TwoRanks
from tests.modes.running import ONLINE, draft_of, same_weights, train

LATEST = "dstill_student-latest"


@pytest.fixture(scope="module")
def online(stages: Stages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which an online student stopped after step 3 of 6; do not change it."""
    folder = stages.copy_to(tmp_path_factory.mktemp("online"))
    shutil.rmtree(folder / "traj")
    words = ("training.max_steps=3", "training.total_steps=6")
    outcome = train(folder, "dstill_student", *ONLINE, *words)
    assert outcome.status == 0, outcome.err
    assert not (folder / "online").exists()
    return folder


def test_a_run_on_the_same_blocks_ends_in_the_same_weights(stages: Stages, tmp_path: Path) -> None:
    """Every valid anchor, stored without rounding, against the same ones rolled out each time."""
    folder = stages.copy_to(tmp_path)
    stored = ("dstill.trajectories=all", "output_dir=out/stored")
    collect = ("dstill.collect.anchors_per_sample=null", "dstill.collect.logp_dtype=float32")
    assert train(folder, "dstill_collect", *stored, *collect).status == 0
    metrics = []
    for words in (stored, ONLINE):
        outcome = train(folder, "dstill_student", "training.num_anchors=1000", *words)
        assert outcome.status == 0, outcome.err
        metrics.append(outcome.metrics)
    assert same_weights(
        draft_of(folder / "out/stored" / LATEST), draft_of(folder / "out/online" / LATEST)
    )
    for step, values in metrics[0].items():
        assert values.keys() == metrics[1][step].keys()
        for name in ("loss", "ce", "kd", "acc", "p_root", "masked", "accept_length"):
            assert values[name] == metrics[1][step][name], (step, name)


def test_two_ranks_have_the_losses_of_one(
    stages: Stages, on_two_ranks: TwoRanks, tmp_path: Path
) -> None:
    folder = stages.copy_to(tmp_path)
    one, two = train(folder, "dstill_student", *ONLINE).metrics, on_two_ranks.metrics("online")
    assert one.keys() == two.keys() == set(range(1, 7))
    for step, metrics in one.items():
        for name in {name for name in metrics if not name.startswith("perf/")}:
            assert two[step][name] == pytest.approx(metrics[name], rel=1e-5, abs=1e-6), name


def test_a_resumed_run_needs_the_same_teacher(online: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(online, tmp_path / "copy", symlinks=True)
    resume = (*ONLINE, "training.resume_from=out/online", "training.total_steps=6")
    other = "dstill.student.teacher=out/online"
    assert "dstill_teacher_hash" in train(folder, "dstill_student", *resume, other).error
    line = train(folder, "dstill_student", *resume, "dstill.collect.top_k=4").error
    assert "dstill_rollout" in line
    stored = (
        "training.resume_from=out/online",
        "dstill.trajectories=traj",
        "output_dir=out/online",
    )
    assert train(folder, "dstill_collect", "training.num_epochs=1").status == 0
    assert "dstill_store_digest" in train(folder, "dstill_student", *stored).error
    # The teacher is known by its weights, wherever they lie.
    (folder / "out/teacher").rename(folder / "moved")
    moved = "dstill.student.teacher=moved"
    assert train(folder, "dstill_student", *resume, moved).status == 0


def test_the_checkpoint_holds_the_student_alone(online: Path, stages: Stages) -> None:
    state = torch.load(online / "out/online" / LATEST / "training_state.pt", weights_only=True)
    stored = stages.folder / "out/student" / LATEST
    assert state["draft_state_dict"].keys() == draft_of(stored).keys()
    sizes = [
        sum(path.stat().st_size for path in folder.iterdir())
        for folder in (online / "out/online" / LATEST, stored)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


def test_an_evaluation_cache_is_taken(stages: Stages, tmp_path: Path) -> None:
    """Its samples need no records."""
    folder = stages.copy_to(tmp_path)
    cache = f"data.eval_hidden_states_path={stages.inputs / 'cache'}"
    words = (cache, "training.eval_interval=2", "training.max_steps=2")
    outcome = train(folder, "dstill_student", *ONLINE, *words)
    assert outcome.status == 0, outcome.err
    assert {"eval/tau_1", "eval/tau_3"} <= outcome.metrics[2].keys()


@pytest.mark.parametrize(
    ("mode", "words", "parts"),
    [
        ("dstill_collect", [], ["dstill.trajectories: online has no store to collect into"]),
        (
            "dstill_student",
            ["model.draft_checkpoint_path=null", "training.resume_from=out/online"],
            ["online needs the teacher in every run", "dstill.student.teacher"],
        ),
        (
            "dstill_student",
            ["dstill.student.teacher=./none"],
            ["dstill.student.teacher: ./none does not exist"],
        ),
        (
            "dstill_student",
            ["dstill.student.teacher=nowhere"],
            ["dstill.student.teacher: nowhere does not exist"],
        ),
        (
            "dstill_student",
            ["dstill.student.teacher=out"],
            ["dstill.student.teacher: no drafter to start from"],
        ),
        (
            "dstill_student",
            ["dstill.student.teacher=x", "dstill.trajectories=traj"],
            ["dstill.student.teacher needs dstill.trajectories: online"],
        ),
        ("dstill_student", ["dstill.collect.top_k=64"], ["dstill.collect.top_k is 64"]),
    ],
)
def test_what_does_not_fit_is_refused(
    online: Path, mode: str, words: list[str], parts: list[str]
) -> None:
    line = train(online, mode, "dstill.trajectories=online", "output_dir=out/new", *words).error
    assert all(part in line for part in parts), line
    assert not (online / "out/new").exists()
