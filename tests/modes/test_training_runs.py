"""Whole runs of the training command: ranks, a kill and a resume, warm starts, refusals."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specforge.export.to_hf import export_to_hf
from torch import nn

from specforge_dstill.errors import UserError
from specforge_dstill.maths.root_schedule import RootSchedule
from specforge_dstill.modes.checks import check_store, expected_draft_config
from specforge_dstill.options import DstillOptions
from specforge_dstill.runfile import load_run
from specforge_dstill.trajectory_store import TrajectoryStore
from tests import tiny
from tests.modes.conftest import Stages, TwoRanks
from tests.modes.running import ERROR, draft_of, same_weights, start, train
from tests.modes.support import make_drafter

BOTH = ["teacher", "student"]


# --- one rank and two


@pytest.mark.parametrize("stage", BOTH)
def test_two_ranks_have_the_losses_of_one(
    stages: Stages, on_two_ranks: TwoRanks, stage: str
) -> None:
    """SpecForge deals each global batch of 4 to the ranks in turn: the same samples a step."""
    one, two = getattr(stages, stage).metrics, on_two_ranks.metrics(stage)
    assert one.keys() == two.keys() == set(range(1, 7))
    for step, metrics in one.items():
        for name in set(metrics) - {name for name in metrics if name.startswith("perf/")}:
            assert two[step][name] == pytest.approx(metrics[name], rel=1e-5, abs=1e-6), name
    worst = max(abs(one[step]["loss"] - two[step]["loss"]) for step in one)
    print(f"{stage}: largest difference of the loss {worst:.1e}")


def test_ranks_whose_draws_are_empty_go_on(on_two_ranks: TwoRanks) -> None:
    """Batches of one sample with one scored position, on two ranks, without a hang."""
    metrics = on_two_ranks.metrics("sparse")
    assert len(metrics) == 8
    assert all(0 < step["loss"] < 100 for step in metrics.values())


def test_a_mistake_that_one_rank_finds_is_that_of_all(on_two_ranks: TwoRanks) -> None:
    """No rank is left in a collective, and the first, which speaks, tells of it."""
    assert on_two_ranks.statuses("broken") == [2, 2]
    errors = [line for line in on_two_ranks.outcome.err.splitlines() if ERROR in line]
    lines = [line for line in errors if "/broken/" in line]  # not those of other commands
    assert len(set(lines)) == 1
    assert "00000003.ckpt: cannot be read" in lines[0]


def test_the_curriculum_is_logged(stages: Stages) -> None:
    schedule = RootSchedule()
    for step, metrics in stages.student.metrics.items():
        assert metrics["p_root"] == pytest.approx(schedule.p_root((step - 1) / 6))


# --- kill and resume


LONG = ("training.batch_size=1", "training.num_epochs=5", "training.save_interval=1")


def await_checkpoint(folder: Path, step: int, process: Any) -> None:
    deadline = time.monotonic() + 120
    while not (folder / f"dstill_student-step{step}" / "training_state.pt").exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("trajectories", "note"), [("traj", "is not read"), ("online", "names the teacher only")]
)
def test_a_killed_student_resumes_to_the_same_weights(
    stages: Stages, tmp_path: Path, trajectories: str, note: str
) -> None:
    """SIGKILL in mid-epoch; resumed with one more word, the file's start left as it is."""
    folder = stages.copy_to(tmp_path)
    words = (*LONG, f"dstill.trajectories={trajectories}")
    whole = train(folder, "dstill_student", *words, "output_dir=out/whole")
    assert whole.status == 0, whole.err
    with start(folder, "dstill_student", *words, "output_dir=out/cut") as process:
        await_checkpoint(folder / "out/cut", 17, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    cut = folder / "out/cut"
    reached = int((cut / "dstill_student-latest").resolve().name.rpartition("step")[2])
    assert 16 <= reached < 60
    resumed = train(
        folder, "dstill_student", *words, "output_dir=out/cut", "training.resume_from=out/cut"
    )
    assert resumed.status == 0, resumed.err
    assert f"resuming from out/cut: model.draft_checkpoint_path {note}" in resumed.err
    assert list(resumed.metrics) == list(range(reached + 1, 61))
    for step, metrics in resumed.metrics.items():
        for name in ("loss", "p_root", "masked", "lr"):
            assert metrics[name] == whole.metrics[step][name], (step, name)
    final = "dstill_student-step60"
    assert same_weights(draft_of(cut / final), draft_of(folder / "out/whole" / final))
    print(f"killed after step {reached} of 60")


@pytest.fixture
def half(stages: Stages, tmp_path: Path) -> Path:
    """A folder with a student that stopped after step 3 of 6."""
    folder = stages.copy_to(tmp_path)
    outcome = train(folder, "dstill_student", "training.max_steps=3", "training.total_steps=6")
    assert outcome.status == 0, outcome.err
    return folder


RESUME = ("training.resume_from=out/student", "training.total_steps=6")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["dstill.student.alpha=0.5"], "dstill.student.alpha"),
        (["training.num_anchors=5"], "num_anchors"),
        (["training.seed=7"], "seed"),
    ],
)
def test_a_resume_under_other_options_is_refused(half: Path, words: list[str], part: str) -> None:
    line = train(half, "dstill_student", *RESUME, *words).error
    assert part in line
    assert "resume with the original configuration" in line
    assert (half / "out/student/dstill_student-latest/training_state.pt").exists()


def test_a_resume_with_another_store_is_refused(half: Path) -> None:
    other = ("dstill.trajectories=other", "training.seed=5")
    assert train(half, "dstill_collect", *other).status == 0
    line = train(half, "dstill_student", *RESUME, "dstill.trajectories=other").error
    assert "dstill_store_digest" in line


def test_a_start_named_beside_a_resume_on_the_command_line_is_refused(half: Path) -> None:
    line = train(half, "dstill_student", *RESUME, "model.draft_checkpoint_path=out/teacher").error
    assert "mutually exclusive" in line


# --- warm starts


@pytest.fixture(scope="module")
def dflash(stages: Stages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SpecForge's own DFlash drafter, as a run and as a Hugging Face folder."""
    folder = stages.copy_to(tmp_path_factory.mktemp("dflash"))
    assert train(folder, "dflash").status == 0
    export_to_hf(
        str(folder / "out/dflash"), str(stages.inputs / "draft.json"), str(folder / "published")
    )
    return folder


@pytest.mark.parametrize(
    ("start_from", "words"),
    [
        ("out/dflash", []),
        ("out/dflash/dflash-latest", []),
        ("out/dflash/dflash-latest/training_state.pt", []),
        ("published", []),
        ("published", ["model.draft_model_config=null"]),
    ],
)
def test_a_teacher_starts_from_a_dflash_drafter(
    dflash: Path, tmp_path: Path, start_from: str, words: list[str]
) -> None:
    """With no learning to speak of, the saved draft is the one that it started from."""
    outcome = train(
        dflash,
        "dstill_teacher",
        *(f"model.draft_checkpoint_path={start_from}", f"output_dir={tmp_path}"),
        *("training.learning_rate=1e-30", "training.max_steps=1", *words),
    )
    assert outcome.status == 0, outcome.err
    started = draft_of(tmp_path / "dstill_teacher-latest")
    assert same_weights(started, draft_of(dflash / "out/dflash/dflash-latest"))


def test_a_student_starts_from_its_teacher(stages: Stages, tmp_path: Path) -> None:
    folder = stages.copy_to(tmp_path)
    words = ("training.learning_rate=1e-30", "training.max_steps=1")
    assert train(folder, "dstill_student", *words).status == 0
    started = draft_of(folder / "out/student/dstill_student-latest")
    assert same_weights(started, draft_of(folder / "out/teacher/dstill_teacher-latest"))


def of_another_family(folder: Path) -> None:
    path = folder / "start/eagle3-step1/training_state.pt"
    path.parent.mkdir(parents=True)
    torch.save({"strategy": "eagle3", "draft_state_dict": {}}, path)


def cut_short(folder: Path) -> None:
    path = folder / "start/x-step1/training_state.pt"
    path.parent.mkdir(parents=True)
    whole = (folder / "out/teacher/dstill_teacher-latest/training_state.pt").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def not_finite(folder: Path) -> None:
    state = torch.load(
        folder / "out/teacher/dstill_teacher-latest/training_state.pt", weights_only=True
    )
    state["draft_state_dict"]["fc.weight"][0, 0] = float("nan")
    (folder / "start/x-step1").mkdir(parents=True)
    torch.save(state, folder / "start/x-step1/training_state.pt")


def without_any(folder: Path) -> None:
    (folder / "start").mkdir()


def of_another_shape(folder: Path) -> None:
    draft = {**tiny.draft_config(), "intermediate_size": 64}
    tiny.write_json(folder / "other.json", draft)
    words = ("model.draft_model_config=other.json", "training.max_steps=1", "output_dir=start")
    assert train(folder, "dstill_teacher", *words).status == 0


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (of_another_family, "was written by mode eagle3"),
        (cut_short, "it may be cut short"),
        (not_finite, "start: its fc.weight holds NaN"),
        (without_any, "no drafter to start from"),
        (of_another_shape, "incompatible draft tensor shapes"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(
    stages: Stages, tmp_path: Path, make: Callable[[Path], None], part: str
) -> None:
    folder = stages.copy_to(tmp_path)
    make(folder)
    words = ("model.draft_checkpoint_path=start", "output_dir=out/new")
    assert part in train(folder, "dstill_teacher", *words).error


# --- a store that does not fit


def changed_cache(folder: Path, inputs: Path, change: Callable[[dict[str, Any]], Any]) -> str:
    """A copy of the cache whose fifth sample went through ``change``; its word for the command."""
    shutil.copytree(inputs / "cache", folder / "changed")
    path = folder / "changed/data/00000/00000004.ckpt"
    changed = change(torch.load(path, weights_only=True))
    torch.save({name: value for name, value in changed.items() if value is not None}, path)
    return "data.hidden_states_path=changed"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["model.draft_checkpoint_path=out/student"], ["another teacher"]),
        (["model.draft_block_size=4"], ["block_size=8", "block_size=4"]),
        (["dstill.steps=2"], ["steps=3", "steps=2"]),
        (["data.max_length=63"], ["max_length=64", "max_length=63"]),
        (["dstill.trajectories=none"], ["no trajectory store in none"]),
        (["model.draft_checkpoint_path=null"], ["starts from its teacher"]),
    ],
)
def test_a_store_that_does_not_fit_is_refused(
    half: Path, words: list[str], parts: list[str]
) -> None:
    line = train(half, "dstill_student", "output_dir=out/new", *words).error
    assert all(part in line for part in parts), line
    assert not (half / "out/new").exists()


def test_what_needs_no_model_is_said_before_one_is_built(
    half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is not there or not finished, and an output folder that is taken."""

    def not_wanted(*_: Any, **__: Any) -> None:
        raise AssertionError("the model is built")

    monkeypatch.setattr("specforge.application.build_application_run", not_wanted)
    line = train(half, "dstill_student").error
    assert "out/student holds checkpoints of this run already" in line
    line = train(half, "dstill_student", "output_dir=out/new", "dstill.trajectories=none").error
    assert "no trajectory store in none" in line


def test_a_store_of_another_vocabulary_is_refused(stages: Stages) -> None:
    drafter = make_drafter()
    drafter.lm_head = nn.Linear(tiny.HIDDEN, 70, bias=False)
    config: Any = load_run(
        str(stages.folder / "dstill.yaml"), ["training.resume_from=x"], "dstill_student"
    ).config
    store = TrajectoryStore.open(stages.folder / "traj")
    with pytest.raises(UserError, match=r"has .*vocab_size=64, this run has .*vocab_size=70"):
        check_store(store, config, DstillOptions(steps=3), drafter)


def test_another_version_of_transformers_is_no_other_drafter() -> None:
    """It writes other defaults down; what both write is compared."""
    config = make_drafter().draft_model.config
    own = config.to_diff_dict()
    store: Any = SimpleNamespace(identity=SimpleNamespace(draft_config=own))
    assert expected_draft_config(store, config) == own
    theirs = {**own, "transformers_version": "4.0", "a_default": 1}
    store.identity.draft_config = {k: v for k, v in theirs.items() if k != "hidden_act"}
    assert expected_draft_config(store, config) == store.identity.draft_config
    store.identity.draft_config = {**theirs, "rms_norm_eps": 1.0}
    assert expected_draft_config(store, config) == theirs
    store.identity.draft_config = {**theirs, "is_causal": False}
    assert expected_draft_config(store, config) != store.identity.draft_config
    store.identity.draft_config = theirs
    config.is_causal = False
    assert expected_draft_config(store, config) != store.identity.draft_config


def test_a_sample_without_a_record_is_refused(stages: Stages, tmp_path: Path) -> None:
    folder = stages.copy_to(tmp_path)
    word = changed_cache(folder, stages.inputs, lambda sample: sample)
    files = folder / "changed/data/00000"
    shutil.copy(files / "00000003.ckpt", files / "00000012.ckpt")
    line = train(folder, "dstill_student", word).error
    assert "no record of 1 of the cache's 13 samples (first: data/00000/00000012.ckpt)" in line


def other_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"input_ids": sample["input_ids"] - 1}


def test_a_sample_with_other_tokens_is_refused(stages: Stages, tmp_path: Path) -> None:
    folder = stages.copy_to(tmp_path)
    word = changed_cache(folder, stages.inputs, other_tokens)
    line = train(folder, "dstill_student", word).error
    assert "sample data/00000/00000004.ckpt has other tokens now" in line


# --- a cache that does not fit


def truncate(folder: Path) -> None:
    path = folder / "changed/data/00000/00000004.ckpt"
    path.write_bytes(path.read_bytes()[:3000])


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda sample: sample | {"loss_mask": None}, "lacks 'loss_mask'"),
        (
            lambda sample: {**sample, "hidden_states": sample["hidden_states"][:, :32]},
            "cache has width 32 = 1 layer x 32; the draft config wants layers [1,2] = 64",
        ),
        (
            lambda sample: {name: tensor[:9] for name, tensor in sample.items()},
            "no two neighbouring tokens are scored in its first 64",
        ),
        (
            lambda sample: {**sample, "input_ids": sample["input_ids"][:-1]},
            "its tensors differ in length",
        ),
        (
            lambda sample: {**sample, "input_ids": sample["input_ids"] + 1000},
            "the cache is another target's",
        ),
        (lambda sample: {**sample, "note": print}, "holds more than tensors"),
        (truncate, "it is truncated or no feature file"),
    ],
    ids=["key", "layers", "short", "lengths", "tokens", "code", "truncated"],
)
@pytest.mark.parametrize("mode", ["dstill_teacher", "dstill_collect", "dstill_student"])
def test_a_feature_file_that_does_not_fit_is_refused(
    stages: Stages, tmp_path: Path, change: Callable[[Any], Any], part: str, mode: str
) -> None:
    folder = stages.copy_to(tmp_path)
    if change is truncate:
        word = changed_cache(folder, stages.inputs, lambda sample: sample)
        truncate(folder)
    else:
        word = changed_cache(folder, stages.inputs, change)
    # A collection that is complete has no need of its cache.
    store = "dstill.trajectories=" + ("new" if mode == "dstill_collect" else "traj")
    line = train(folder, mode, word, store, "output_dir=out/new").error
    assert part in line
    assert "00000004.ckpt" in line
    assert not (folder / "out/new").exists()


def test_features_of_another_dtype_are_converted_with_a_warning(
    stages: Stages, tmp_path: Path
) -> None:
    folder = stages.copy_to(tmp_path)
    shutil.copytree(stages.inputs / "cache", folder / "half")
    for path in (folder / "half").rglob("*.ckpt"):
        sample = torch.load(path, weights_only=True)
        torch.save({**sample, "hidden_states": sample["hidden_states"].bfloat16()}, path)
    for mode in ("dstill_teacher", "dstill_collect", "dstill_student"):
        words = ("data.hidden_states_path=half", "output_dir=out/half", "dstill.trajectories=h")
        with pytest.warns(UserWarning, match=r"features are bfloat16 and the draft is float32"):
            outcome = train(folder, mode, *words)
        assert outcome.status == 0, outcome.err
    first = outcome.metrics[1]["loss"]
    assert first == pytest.approx(stages.student.metrics[1]["loss"], rel=0.05)
    saved = draft_of(folder / "out/half/dstill_student-latest")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


@pytest.mark.parametrize("mode", ["dstill_teacher", "dstill_collect", "dstill_student"])
def test_a_mask_token_that_no_config_names_is_not_guessed(
    stages: Stages, tmp_path: Path, mode: str
) -> None:
    """SpecForge would take the stop token, which none of our drafters could then propose."""
    folder = stages.copy_to(tmp_path)
    draft = json.loads((stages.inputs / "draft.json").read_text())
    token = draft["dflash_config"].pop("mask_token_id")
    tiny.write_json(folder / "unmasked.json", draft)
    words = ("model.draft_model_config=unmasked.json", "output_dir=out/new")
    store = "traj" if mode == "dstill_student" else "new"
    line = train(folder, mode, *words, f"dstill.trajectories={store}").error
    assert "set dflash_config.mask_token_id in the draft config, or model.mask_token_id, to" in line
    assert "an unused special token" in line
    if mode == "dstill_teacher":
        assert train(folder, mode, *words, f"model.mask_token_id={token}").status == 0


def test_options_of_the_dflash_objective_are_not_ignored(stages: Stages) -> None:
    words = ("training.loss_decay_gamma=7", "output_dir=out/new")
    line = train(stages.folder, "dstill_teacher", *words).error
    assert "dstill.teacher.position_decay" in line
