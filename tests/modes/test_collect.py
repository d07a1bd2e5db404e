"""Collection: what a store holds, whatever the number of ranks and of runs."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specforge_dstill.checksums import sha256_of
from specforge_dstill.cli import main as verb
from specforge_dstill.data.feature_files import load_features
from specforge_dstill.data.manifest import SAMPLES
from specforge_dstill.errors import UserError
from specforge_dstill.maths.anchors import valid_anchors
from specforge_dstill.maths.rollout import CommitRule
from specforge_dstill.maths.trajectory import Trajectory
from specforge_dstill.modes.assembly import list_samples, load_drafter
from specforge_dstill.modes.collect import _await_shards
from specforge_dstill.modes.drafter import BlockDrafter, rollout_blocks
from specforge_dstill.runfile import load_run
from specforge_dstill.token_hash import token_hash
from specforge_dstill.trajectory_store import TrajectoryStore
from tests import tiny
from tests.data.caches import make_manifest
from tests.modes.conftest import Stages, TwoRanks
from tests.modes.running import store_bytes, train


@pytest.fixture(scope="module")
def teacher(stages: Stages) -> BlockDrafter:
    config: Any = load_run(str(stages.folder / "dstill.yaml"), (), "dstill_teacher").config
    return load_drafter(config, str(stages.folder / "out/teacher"), device=torch.device("cpu"))


def direct(
    teacher: BlockDrafter, inputs: Path, sample_id: str, anchors: torch.Tensor
) -> Trajectory:
    """The same sample rolled out one block at a time."""
    features = load_features(inputs / "cache" / sample_id)
    return Trajectory.cat(
        [
            rollout_blocks(
                teacher,
                features["hidden_states"],
                anchor[None],
                features["input_ids"][anchor[None]],
                steps=3,
                rule=CommitRule(tiny.MASK_ID, top_k=8),
            )
            for anchor in anchors
        ]
    )


def test_records_are_rollouts_of_the_teacher(stages: Stages, teacher: BlockDrafter) -> None:
    store = TrajectoryStore.open(stages.folder / "traj")
    assert store.sample_ids == tuple(f"data/00000/{i:08d}.ckpt" for i in range(12))
    for sample_id in store.sample_ids[::4]:
        record = store[sample_id]
        features = load_features(stages.inputs / "cache" / sample_id)
        assert record.token_hash == token_hash(features["input_ids"])
        assert record.length == len(features["input_ids"])
        assert len(record.anchors) == 6
        assert set(record.anchors.tolist()) <= set(valid_anchors(features["loss_mask"]).tolist())
        expected = direct(teacher, stages.inputs, sample_id, record.anchors)
        assert torch.equal(record.trajectory.endpoint, expected.endpoint)
        assert torch.equal(record.trajectory.commit_pass, expected.commit_pass)
        assert torch.equal(record.trajectory.top_ids, expected.top_ids)
        # Kept as float16: log-probabilities to 3 digits.
        torch.testing.assert_close(
            record.trajectory.top_logp, expected.top_logp, atol=1e-3, rtol=1e-3
        )


def test_the_identity_names_what_made_it(stages: Stages) -> None:
    identity = TrajectoryStore.open(stages.folder / "traj").identity
    assert (identity.block_size, identity.steps, identity.top_k) == (8, 3, 8)
    assert (identity.mask_token_id, identity.vocab_size) == (tiny.MASK_ID, tiny.VOCAB)
    assert (identity.max_length, identity.anchors_per_sample) == (64, 6)
    assert {"specforge", "specforge-dstill", "torch"} <= identity.versions.keys()


def test_two_ranks_collect_the_same_bytes(stages: Stages, on_two_ranks: TwoRanks) -> None:
    assert store_bytes(on_two_ranks.folder / "traj") == store_bytes(stages.folder / "traj")


def test_a_lost_shard_is_made_again_and_nothing_else(stages: Stages, tmp_path: Path) -> None:
    folder = stages.copy_to(tmp_path)
    whole = store_bytes(folder / "traj")
    lost = folder / "traj" / "shard-00001-of-00003.arrow"
    kept = folder / "traj" / "shard-00000-of-00003.arrow"
    before = kept.stat().st_mtime_ns
    lost.unlink()
    again = train(folder, "dstill_collect")
    assert again.status == 0
    assert "4/4 samples" in again.out + again.err
    assert store_bytes(folder / "traj") == whole
    assert kept.stat().st_mtime_ns == before


def test_a_complete_store_is_told_at_once(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a look at the features, and without the target."""
    folder = stages.copy_to(tmp_path)
    whole = store_bytes(folder / "traj")

    def not_wanted(*_: Any, **__: Any) -> None:
        raise AssertionError("the model is built")

    monkeypatch.setattr("specforge_dstill.modes.collect.build_model_bundle", not_wanted)
    outcome = train(folder, "dstill_collect")
    assert outcome.status == 0, outcome.err
    size = sum(len(content) for name, content in whole.items() if name.endswith(".arrow"))
    assert outcome.out.splitlines() == [
        f"trajectories complete already: 72 blocks of 12 samples, {size} bytes in traj"
    ]
    assert store_bytes(folder / "traj") == whole


@pytest.mark.parametrize("name", ["identity.json", "samples.txt", "manifest.json"])
def test_a_small_file_that_is_gone_is_written_again(
    stages: Stages, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``verify`` says of it."""
    folder = stages.copy_to(tmp_path)
    whole = store_bytes(folder / "traj")
    (folder / "traj" / name).unlink()
    verb(["verify", str(folder / "traj")])
    assert "run --mode dstill_collect again" in capsys.readouterr().out
    assert train(folder, "dstill_collect").status == 0
    assert store_bytes(folder / "traj") == whole


def test_a_store_of_another_teacher_is_not_complete(stages: Stages, tmp_path: Path) -> None:
    folder = stages.copy_to(tmp_path)
    other = ("dstill_teacher", "output_dir=out/other", "training.max_steps=1")
    assert train(folder, *other).status == 0
    line = train(folder, "dstill_collect", "model.draft_checkpoint_path=out/other").error
    assert "was made with teacher_hash=" in line


def test_a_store_of_another_capture_is_not_complete(stages: Stages, tmp_path: Path) -> None:
    """Its samples have the names and tokens of the run's: only their captures tell them apart."""
    folder = stages.copy_to(tmp_path)
    shutil.rmtree(folder / "traj")
    cache = folder / "cache"
    shutil.copytree(stages.inputs / "cache", cache)
    rows = [
        {
            "sample_id": sample_id,
            "bytes": (cache / sample_id).stat().st_size,
            "token_hash": token_hash(load_features(cache / sample_id)["input_ids"]),
        }
        for sample_id in list_samples(str(cache))
    ]
    (cache / SAMPLES).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    captured = make_manifest(
        target_layer_ids=tuple(tiny.LAYERS), samples_sha256=sha256_of(cache / SAMPLES)
    )
    replace(captured, target_weights="those").write(cache)
    word = "data.hidden_states_path=cache"
    assert train(folder, "dstill_collect", word).status == 0
    assert "complete already" in train(folder, "dstill_collect", word).out
    replace(captured, target_weights="others").write(cache)
    line = train(folder, "dstill_collect", word).error
    assert line.startswith("trajectory store traj was made with cache=")
    line = train(folder, "dstill_student", word).error
    assert line.startswith("trajectory store traj was collected from another feature cache")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"is_causal": True}, "draft_config.is_causal"),
        ({"rope_theta": 5000.0}, "draft_config.rope_parameters.rope_theta"),
        ({"dflash_config": {"target_layer_ids": tiny.LAYERS, "mask_token_id": 1}}, "mask_token_id"),
    ],
)
def test_a_store_of_the_same_weights_in_another_drafter_is_not_complete(
    stages: Stages, tmp_path: Path, change: dict[str, Any], part: str
) -> None:
    """What a drafter does, its weights do not show all of: neither stage takes it for the same."""
    folder = stages.copy_to(tmp_path)
    tiny.write_json(folder / "other.json", {**tiny.draft_config(), **change})
    word = "model.draft_model_config=other.json"
    collected = train(folder, "dstill_collect", word).error
    assert "was made with" in collected
    assert part in collected
    assert part in train(folder, "dstill_student", word).error


CALLBACK = """
import shutil
from pathlib import Path

told = Path(__file__).with_name("told")

def ship(*, uri, index, path):
    with told.open("a") as file:
        print(uri, index, path, path.exists(), file=file)

def lose(*, uri, index, path):
    if index != 1 and not told.with_name("room").exists():
        raise OSError(f"no room for {index}")
    with told.open("a") as file:
        print(index, file=file)

nothing = None
"""


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's on the path; where it writes what it is told."""
    (tmp_path / "shipping.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shipping", raising=False)
    return tmp_path / "told"


def test_a_function_hears_of_each_finished_shard(
    stages: Stages, tmp_path: Path, callback: Path
) -> None:
    folder = stages.copy_to(tmp_path)
    names = [f"shard-{index:05d}-of-00003.arrow" for index in range(3)]
    (folder / "traj" / names[1]).unlink()
    words = ("dstill.collect.on_shard=shipping:ship",)
    assert train(folder, "dstill_collect", *words).status == 0
    path = folder / "traj" / names[1]
    assert callback.read_text() == f"{path.as_uri()} 1 traj/{names[1]} True\n"


def test_what_the_function_raises_loses_nothing_and_is_made_up(
    stages: Stages, tmp_path: Path, callback: Path
) -> None:
    """Called again by the next run, for those shards alone, until it succeeds."""
    folder = stages.copy_to(tmp_path)
    words = ("dstill.collect.on_shard=shipping:lose", "dstill.trajectories=new")
    whole = store_bytes(stages.folder / "traj")
    for done in ("collected", "complete already"):
        outcome = train(folder, "dstill_collect", *words)
        assert outcome.status == 2
        assert f"trajectories {done}: 72 blocks" in outcome.out
        *lines, last = [line for line in outcome.err.splitlines() if "shipping:lose" in line]
        assert [line.rpartition(": OSError: ")[2] for line in lines] == [
            f"no room for {index}; the shard is in place" for index in (0, 2)
        ]
        assert "failed for 2 of the shards (first: shard-00000-of-00003.arrow: OSError:" in last
        kept = store_bytes(folder / "new")
        assert {name: kept.get(name) for name in whole} == whole
    callback.with_name("room").touch()
    outcome = train(folder, "dstill_collect", *words)
    assert outcome.status == 0, outcome.err
    assert callback.read_text() == "1\n0\n2\n"
    assert store_bytes(folder / "new") == whole


def test_the_first_rank_tells_of_every_ranks_calls(on_two_ranks: TwoRanks) -> None:
    """The second shard is the other rank's, which ends well: the store is complete."""
    assert on_two_ranks.statuses("calls") == [2, 0]
    last = on_two_ranks.outcome.err
    assert "failed for 1 of the shards (first: shard-00001-of-00003.arrow: OSError: no room" in last
    assert (on_two_ranks.folder / "called/shard-00001-of-00003.arrow.owed").exists()
    assert (on_two_ranks.folder / "called/manifest.json").exists()


def test_a_call_that_was_cut_off_is_made_by_the_next_run(
    stages: Stages, tmp_path: Path, callback: Path
) -> None:
    """As when the job was killed between a shard and its call, with other shards to be made."""
    folder = stages.copy_to(tmp_path)
    whole = store_bytes(folder / "traj")
    (folder / "traj/manifest.json").unlink()
    (folder / "traj/shard-00002-of-00003.arrow").unlink()
    for index in (1, 2):
        (folder / f"traj/shard-{index:05d}-of-00003.arrow.owed").write_text("waiting\n")
    callback.with_name("room").touch()
    outcome = train(folder, "dstill_collect", "dstill.collect.on_shard=shipping:lose")
    assert outcome.status == 0, outcome.err
    assert callback.read_text() == "2\n1\n"
    assert store_bytes(folder / "traj") == whole


def test_a_place_that_is_not_a_stores_is_refused_at_once(stages: Stages, tmp_path: Path) -> None:
    """Before the model is built, and by the student, too."""
    folder = stages.copy_to(tmp_path)
    cache = f"dstill.trajectories={stages.inputs / 'cache'}"
    assert "is not empty and holds no trajectory" in train(folder, "dstill_collect", cache).error
    assert (
        "memory of one process"
        in train(folder, "dstill_collect", "dstill.trajectories=memory://x").error
    )


def test_a_teacher_of_another_mode_is_warned_of(stages: Stages, tmp_path: Path) -> None:
    folder = stages.copy_to(tmp_path)
    student = stages.folder / "out/student"
    words = (f"model.draft_checkpoint_path={student}", "dstill.trajectories=new")
    with pytest.warns(UserWarning, match="was trained by dstill_student, not dstill_teacher: its"):
        assert train(folder, "dstill_collect", *words).status == 0
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*was trained by")
        assert train(folder, "dstill_collect", "dstill.trajectories=again").status == 0


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("shipping", "dstill.collect.on_shard: 'shipping' is not of the form package.module:func"),
        ("missing:ship", "missing:ship cannot be imported: No module named 'missing'"),
        ("shipping:sink", "shipping:sink cannot be imported: module 'shipping' has no attribute"),
        ("shipping:nothing", "shipping:nothing is a NoneType, not a function"),
    ],
)
@pytest.mark.usefixtures("callback")
def test_no_such_function_is_refused(stages: Stages, tmp_path: Path, name: str, part: str) -> None:
    folder = stages.copy_to(tmp_path)
    words = (f"dstill.collect.on_shard={name}", "dstill.trajectories=new")
    assert part in train(folder, "dstill_collect", *words).error
    assert not (folder / "new").exists()


@pytest.mark.parametrize(
    "names",
    [
        ["shard-00001-of-00003.arrow"],
        ["manifest.json"],
        ["identity.json", "samples.txt"],
        ["identity.json", "samples.txt", "shard-00000-of-00003.arrow"],
    ],
    ids=["shard", "manifest", "notes", "notes and shard"],
)
def test_a_repaired_store_is_collected_to_the_same_bytes(
    stages: Stages, tmp_path: Path, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stages.copy_to(tmp_path)
    whole = store_bytes(folder / "traj")
    for name in names:
        content = bytearray(whole[name])
        content[len(content) // 2] ^= 1
        (folder / "traj" / name).write_bytes(content)
    assert verb(["verify", str(folder / "traj"), "--repair"]) == 1
    outcome = train(folder, "dstill_collect")
    assert outcome.status == 0, outcome.err
    shutil.rmtree(folder / "traj" / "damaged")
    assert store_bytes(folder / "traj") == whole
    assert verb(["verify", str(folder / "traj")]) == 0


def test_other_settings_do_not_continue_a_store(stages: Stages, tmp_path: Path) -> None:
    folder = stages.copy_to(tmp_path)
    whole = store_bytes(folder / "traj")
    line = train(folder, "dstill_collect", "dstill.collect.top_k=4").error
    assert "top_k=8" in line
    assert "top_k=4" in line
    assert store_bytes(folder / "traj") == whole


def test_sampled_commitment_repeats_itself(stages: Stages, tmp_path: Path) -> None:
    folder = stages.copy_to(tmp_path)
    made = {}
    for name, seed in {"a": 1, "b": 1, "c": 2}.items():
        outcome = train(
            folder,
            "dstill_collect",
            f"dstill.trajectories={name}",
            "dstill.collect.commit=sampled",
            "dstill.collect.temperature=2.0",
            f"training.seed={seed}",
        )
        assert outcome.status == 0, outcome.err
        made[name] = store_bytes(folder / name)
    assert made["a"] == made["b"]
    first = TrajectoryStore.open(folder / "a")["data/00000/00000000.ckpt"].trajectory
    greedy = TrajectoryStore.open(folder / "traj")["data/00000/00000000.ckpt"].trajectory
    assert made["a"] != made["c"]
    assert not torch.equal(first.endpoint, greedy.endpoint)


def test_every_valid_anchor_and_every_pass(stages: Stages, tmp_path: Path) -> None:
    folder = stages.copy_to(tmp_path)
    outcome = train(
        folder,
        "dstill_collect",
        "dstill.trajectories=full",
        "dstill.collect.record=full",
        "dstill.collect.anchors_per_sample=null",
        "dstill.collect.logp_dtype=float32",
    )
    assert outcome.status == 0, outcome.err
    record = TrajectoryStore.open(folder / "full")["data/00000/00000002.ckpt"]
    features = load_features(stages.inputs / "cache/data/00000/00000002.ckpt")
    assert torch.equal(record.anchors, valid_anchors(features["loss_mask"]))
    assert record.trajectory.top_ids.shape[1:] == (3, 7, 8)
    # The committing pass is the one that the default records. A block's place among its
    # companions does not matter beyond rounding.
    kept = TrajectoryStore.open(folder / "traj")["data/00000/00000002.ckpt"]
    rows = torch.searchsorted(record.anchors, kept.anchors)
    ids, logp = record.trajectory[rows].committing()
    expected_ids, expected_logp = kept.trajectory.committing()
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(logp, expected_logp, atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["dstill.collect.top_k=64"], "dstill.collect.top_k is 64"),
        (["dstill.steps=8"], "dstill.steps: steps must lie in 1..7 for block_size 8"),
        (["model.draft_checkpoint_path=null"], "dstill_collect needs a trained teacher"),
    ],
)
def test_what_does_not_fit_is_refused(
    stages: Stages, tmp_path: Path, words: list[str], part: str
) -> None:
    folder = stages.copy_to(tmp_path)
    line = train(folder, "dstill_collect", "dstill.trajectories=new", *words).error
    assert part in line
    assert not (folder / "new").exists()


def test_patience_with_ranks_that_finish_nothing_has_an_end(tmp_path: Path) -> None:
    """Without a launcher nobody ends the rank that waits for a dead one."""

    class Stuck:
        plan = SimpleNamespace(shards=9)

        def missing(self) -> list[int]:
            return [4, 7]

    writer: Any = Stuck()
    with pytest.raises(UserError, match=r"training\.dist_timeout\), and 2 of 9 are missing"):
        _await_shards(writer, patience_s=0.2)
