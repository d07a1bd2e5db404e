"""Every stage once, on the tiny inputs, for the tests of runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import tiny
from tests.modes.running import ONLINE, Outcome, commands_on_two_ranks, train, write_run

SHIPPING = """
def lose_the_second(*, uri, index, path):
    if index == 1:
        raise OSError("no room")
"""
AFTER = ("dstill.collect.after_training=true",)
# A learning rate that no weight survives.
WILD = (
    *("training.learning_rate=1e35", "training.max_grad_norm=1e30"),
    *("training.num_epochs=9", "output_dir=out/wild"),
)


@dataclass(frozen=True)
class Stages:
    """A folder in which every stage has run, and what each printed; do not change it."""

    folder: Path
    inputs: Path
    teacher: Outcome
    collect: Outcome
    student: Outcome

    def copy_to(self, folder: Path) -> Path:
        """The run file, the teacher and the store in another folder, to be changed there."""
        shutil.copy(self.folder / "dstill.yaml", folder)
        shutil.copytree(self.folder / "traj", folder / "traj")
        shutil.copytree(self.folder / "out" / "teacher", folder / "out" / "teacher", symlinks=True)
        return folder


@pytest.fixture(scope="session")
def stages(tiny_inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Stages:
    """Teacher, collection and student: 12 samples, batches of 4, 2 epochs."""
    folder = tmp_path_factory.mktemp("stages")
    write_run(folder, tiny_inputs)
    outcomes = [
        train(folder, mode) for mode in ("dstill_teacher", "dstill_collect", "dstill_student")
    ]
    assert [outcome.status for outcome in outcomes] == [0, 0, 0]
    return Stages(folder, tiny_inputs, *outcomes)


@dataclass(frozen=True)
class TwoRanks:
    """The same stages on two ranks, in batches of 2 a rank; see :func:`on_two_ranks`."""

    folder: Path
    outcome: Outcome

    def statuses(self, run_id: str) -> list[int]:
        """What the command returned on each rank."""
        return [json.loads((self.folder / f"rank{i}.json").read_text())[run_id] for i in range(2)]

    def metrics(self, run_id: str) -> dict[int, dict[str, float]]:
        """What one of the runs logged."""
        assert self.statuses(run_id) == [0, 0]
        _, _, rest = self.outcome.out.partition(f"begin {run_id}\n")
        return Outcome(0, rest.partition(f"end {run_id}\n")[0], "").metrics


@pytest.fixture(scope="session")
def on_two_ranks(stages: Stages, tmp_path_factory: pytest.TempPathFactory) -> TwoRanks:
    """One torchrun for all: importing the libraries takes most of the time.

    The student and the collection start from the teacher that one rank trained; the teacher of
    two ranks collects into ``after`` when its training ends. ``sparse`` is a
    teacher on samples with a single scored position, of which most draws leave nothing masked.
    """
    folder = tmp_path_factory.mktemp("two")
    write_run(folder, stages.inputs, training__batch_size=2)
    sparse = tiny.save_features(folder / "sparse", samples=8, scored=slice(20, 22))
    broken = tiny.save_features(folder / "broken", samples=8)
    (broken / "data/00000/00000003.ckpt").write_bytes(b"cut short")
    (folder / "shipping.py").write_text(SHIPPING)
    start = f"model.draft_checkpoint_path={stages.folder / 'out/teacher'}"
    store = f"dstill.trajectories={stages.folder / 'traj'}"
    outcome = commands_on_two_ranks(
        folder,
        {
            "teacher": ["--mode", "dstill_teacher", *AFTER, "dstill.trajectories=after"],
            "collect": ["--mode", "dstill_collect", start],
            "student": ["--mode", "dstill_student", start, store],
            "online": ["--mode", "dstill_student", start, *ONLINE],
            "sparse": [
                *("--mode", "dstill_teacher", f"data.hidden_states_path={sparse}"),
                *("training.batch_size=1", "dstill.steps=7", "output_dir=out/sparse"),
            ],
            "broken": [
                *("--mode", "dstill_teacher", f"data.hidden_states_path={broken}"),
                "output_dir=out/broken",
            ],
            "wild": ["--mode", "dstill_teacher", *WILD],
            "calls": [
                *("--mode", "dstill_collect", start, "dstill.trajectories=called"),
                "dstill.collect.on_shard=shipping:lose_the_second",
            ],
        },
    )
    assert outcome.status == 0, outcome.err
    return TwoRanks(folder, outcome)
