"""`dstill.collect.after_training`: a teacher's job that goes on to collect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.modes.conftest import AFTER, Stages, TwoRanks
from tests.modes.running import store_bytes, train


def separate(folder: Path, teacher: Path, name: str, *words: str) -> dict[str, bytes]:
    """The store that a collection of its own makes with that teacher."""
    start = f"model.draft_checkpoint_path={teacher}"
    outcome = train(folder, "dstill_collect", start, f"dstill.trajectories={name}", *words)
    assert outcome.status == 0, outcome.err
    return store_bytes(folder / name)


@pytest.mark.parametrize(
    "words",
    [(), ("dstill.collect.commit=sampled", "dstill.collect.record=full", "training.seed=3")],
    ids=["greedy", "sampled"],
)
def test_the_store_is_that_of_a_separate_collection(
    stages: Stages, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """From the last weights, byte for byte, though the file names another teacher to collect by."""
    folder = stages.copy_to(tmp_path)
    outcome = train(
        folder,
        "dstill_teacher",
        *(*AFTER, "dstill.trajectories=after", "output_dir=out/new", "training.max_steps=3"),
        *words,
    )
    assert outcome.status == 0, outcome.err
    assert len(outcome.metrics) == 3
    assert "trajectories collected: 72 blocks of 12 samples" in outcome.out
    last = folder / "out/new/dstill_teacher-step3"
    assert store_bytes(folder / "after") == separate(folder, last, "alone", *words)
    assert (
        store_bytes(folder / "after")["manifest.json"]
        != (store_bytes(stages.folder / "traj")["manifest.json"])
    )


def test_two_ranks_train_and_collect(on_two_ranks: TwoRanks, tmp_path: Path) -> None:
    assert on_two_ranks.statuses("teacher") == [0, 0]
    folder = on_two_ranks.folder
    teacher = folder / "out/teacher/dstill_teacher-latest"
    expected = separate(folder, teacher, str(tmp_path / "alone"))
    assert store_bytes(folder / "after") == expected


def test_going_on_with_a_finished_teacher_collects(stages: Stages, tmp_path: Path) -> None:
    """As when the job was ended after the training."""
    folder = stages.copy_to(tmp_path)
    words = (*AFTER, "dstill.trajectories=after", "training.resume_from=out/teacher")
    outcome = train(folder, "dstill_teacher", *words)
    assert outcome.status == 0, outcome.err
    assert outcome.metrics == {}
    assert store_bytes(folder / "after") == store_bytes(stages.folder / "traj")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["dstill.trajectories=online"], "dstill.trajectories is online, so there is nothing to"),
        ([], "traj holds a trajectory store already, which a teacher that is yet to be trained"),
        (["dstill.trajectories=memory://x"], "memory://x is the memory of one process"),
        (["dstill.trajectories=nowhere://x"], "nothing here stores under nowhere://"),
        (
            ["dstill.collect.on_shard=no.such:thing"],
            "no.such:thing cannot be imported",
        ),
        (["dstill.collect.top_k=64"], "dstill.collect.top_k is 64, but the vocabulary has only 63"),
    ],
)
def test_what_would_stop_the_collection_is_said_before_the_training(
    stages: Stages, tmp_path: Path, words: list[str], part: str
) -> None:
    folder = stages.copy_to(tmp_path)
    line = train(folder, "dstill_teacher", *AFTER, "output_dir=out/new", *words).error
    assert part in line
    assert not (folder / "out/new").exists()


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"attention_backend": "fa"}, "training.attention_backend: fa needs model.torch_dtype"),
        ({"attention_backend": "flex_attention"}, "flex_attention needs a GPU"),
        ({"loss_decay_gamma": 4.0}, "training.loss_decay_gamma belongs to --mode dflash"),
    ],
)
def test_the_collections_own_settings_are_checked_before_the_training(
    stages: Stages, tmp_path: Path, settings: dict[str, Any], part: str
) -> None:
    folder = stages.copy_to(tmp_path)
    document = yaml.safe_load((folder / "dstill.yaml").read_text())
    document["modes"]["dstill_collect"]["training"] = settings
    (folder / "dstill.yaml").write_text(yaml.safe_dump(document))
    words = (*AFTER, "output_dir=out/new", "dstill.trajectories=after")
    assert part in train(folder, "dstill_teacher", *words).error
    assert not (folder / "out/new").exists()


def test_other_modes_do_not_collect(stages: Stages, tmp_path: Path) -> None:
    folder = stages.copy_to(tmp_path)
    before = store_bytes(folder / "traj")
    words = (*AFTER, "training.max_steps=1", "output_dir=out/new")
    outcome = train(folder, "dstill_student", *words)
    assert outcome.status == 0, outcome.err
    assert "trajectories" not in outcome.out
    assert store_bytes(folder / "traj") == before
