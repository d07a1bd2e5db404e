"""The three modes with a DSpark draft config: what they learn, resume, share and refuse."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from specforge_dstill.trajectory_store import TrajectoryStore
from tests import tiny
from tests.modes.running import (
    Outcome,
    commands_on_two_ranks,
    draft_of,
    on_torchrun,
    same_weights,
    train,
    write_run,
)

MODES = ("dstill_teacher", "dstill_collect", "dstill_student")
HALF = ("training.max_steps=3", "training.total_steps=6")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``target/``, a DSpark ``cache/`` and a draft config for each head."""
    folder = tmp_path_factory.mktemp("dspark")
    tiny.save_target(folder / "target")
    tiny.save_features(folder / "cache", samples=12, last=True)
    for head in tiny.HEADS:
        tiny.write_json(folder / f"{head}.json", tiny.draft_config(head=head))
    return folder


@dataclass(frozen=True)
class Spark:
    """A folder in which all stages have run with one head."""

    folder: Path
    outcomes: dict[str, Outcome]


@pytest.fixture(scope="module", params=tiny.HEADS)
def spark(
    request: pytest.FixtureRequest, inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Spark:
    return run_stages(tmp_path_factory.mktemp(request.param), inputs, request.param)


@pytest.fixture(scope="module")
def vanilla(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one such drafter, for what does not depend on the head."""
    return run_stages(tmp_path_factory.mktemp("one"), inputs, "vanilla").folder


def run_stages(folder: Path, inputs: Path, head: str) -> Spark:
    write_run(folder, inputs, model__draft_model_config=str(inputs / f"{head}.json"))
    outcomes = {mode: train(folder, mode) for mode in MODES}
    for mode, outcome in outcomes.items():
        assert outcome.status == 0, f"{mode}: {outcome.err}"
    return Spark(folder, outcomes)


def test_every_stage_learns_and_logs_its_heads(spark: Spark) -> None:
    for mode in ("dstill_teacher", "dstill_student"):
        metrics = spark.outcomes[mode].metrics
        assert list(metrics) == list(range(1, 7))
        for step in metrics.values():
            assert 0 <= step["l1" if mode == "dstill_teacher" else "confidence"] < 100
            assert 0 < step["confidence"] < 100
    before, after = (
        draft_of(spark.folder / f"out/{stage}/dstill_{stage}-latest")
        for stage in ("teacher", "student")
    )
    moved = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert moved == set(before), "every weight of the drafter is trained, those of its heads too"


def test_the_store_holds_a_position_more_than_there_are_slots(spark: Spark) -> None:
    store = TrajectoryStore.open(spark.folder / "traj")
    identity = store.manifest.plan.identity
    assert (identity.block_size, identity.prediction_shift) == (tiny.BLOCK_SIZE + 1, 1)
    record = store[next(iter(store))]
    assert record.trajectory.endpoint.shape[1] == tiny.BLOCK_SIZE + 1


@pytest.mark.parametrize("mode", ["dstill_teacher", "dstill_student"])
def test_a_stopped_run_resumes_to_the_same_weights(spark: Spark, tmp_path: Path, mode: str) -> None:
    store = f"dstill.trajectories={spark.folder / 'traj'}"
    start = f"model.draft_checkpoint_path={spark.folder / 'out/teacher'}"
    words = [store, f"output_dir={tmp_path}"]
    first = [start] if mode == "dstill_student" else []
    assert train(spark.folder, mode, *words, *first, *HALF).status == 0
    resumed = train(
        spark.folder, mode, *words, "training.total_steps=6", f"training.resume_from={tmp_path}"
    )
    assert resumed.status == 0, resumed.err
    assert list(resumed.metrics) == [4, 5, 6]
    whole = spark.folder / f"out/{mode.removeprefix('dstill_')}"
    last = f"{mode}-step6"
    assert same_weights(draft_of(tmp_path / last), draft_of(whole / last))


@pytest.mark.parametrize("mode", ["dspark", "dstill_teacher", "dstill_student"])
def test_blocks_are_scored_while_training(vanilla: Path, tmp_path: Path, mode: str) -> None:
    """In SpecForge's own DSpark mode, too: by our decoding, at every position of a block."""
    held_out = tiny.save_features(tmp_path / "held", samples=3, seed=5, last=True)
    words = [f"data.eval_hidden_states_path={held_out}", "training.eval_interval=3"]
    outcome = train(vanilla, mode, *words, f"output_dir={tmp_path / 'out'}")
    assert outcome.status == 0, outcome.err
    for name in ("eval/tau_1", "eval/tau_3"):
        assert name in outcome.out
    assert (tmp_path / f"out/{mode}-best").exists()


def test_two_ranks_train_and_collect_as_one(inputs: Path, tmp_path: Path) -> None:
    config = {"model__draft_model_config": str(inputs / "rnn.json")}
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    write_run(one, inputs, **config)
    write_run(two, inputs, **config, training__batch_size=2)
    alone = {mode: train(one, mode) for mode in MODES}
    start = f"model.draft_checkpoint_path={one / 'out/teacher'}"
    outcome = commands_on_two_ranks(
        two,
        {
            "dstill_teacher": ["--mode", "dstill_teacher"],
            "dstill_collect": ["--mode", "dstill_collect", start],
            "dstill_student": ["--mode", "dstill_student", start],
        },
    )
    assert outcome.status == 0, outcome.err
    assert json.loads((two / "rank1.json").read_text()) == dict.fromkeys(MODES, 0)
    for mode in ("dstill_teacher", "dstill_student"):
        _, _, rest = outcome.out.partition(f"begin {mode}\n")
        together = Outcome(0, rest.partition(f"end {mode}\n")[0], "").metrics
        for step, metrics in alone[mode].metrics.items():
            for name in ("loss", "l1", "confidence", "accept_length"):
                expected = pytest.approx(metrics[name], rel=1e-4, abs=1e-5)
                assert together[step][name] == expected, (mode, step, name)
    stores = [TrajectoryStore.open(folder / "traj") for folder in (one, two)]
    assert stores[0].manifest.shards == stores[1].manifest.shards


def test_resuming_under_other_shares_is_refused(vanilla: Path, tmp_path: Path) -> None:
    assert train(vanilla, "dstill_teacher", f"output_dir={tmp_path}", *HALF).status == 0
    line = train(
        vanilla,
        "dstill_teacher",
        *(f"output_dir={tmp_path}", f"training.resume_from={tmp_path}"),
        *("training.total_steps=6", "training.dspark_l1_loss_alpha=0.5"),
    ).error
    assert "dspark_l1_loss_alpha" in line


def test_a_cache_without_the_targets_last_states_is_refused(
    vanilla: Path, tiny_inputs: Path
) -> None:
    words = (f"data.hidden_states_path={tiny_inputs / 'cache'}", "output_dir=out/new")
    assert "lacks 'target_last_hidden_states'" in train(vanilla, "dstill_teacher", *words).error


def test_last_states_that_are_not_finite_are_named(
    vanilla: Path, inputs: Path, tmp_path: Path
) -> None:
    cache = tiny.save_features(tmp_path / "cache", samples=4, last=True)
    path = cache / "data/00000/00000002.ckpt"
    sample: dict[str, Any] = torch.load(path, weights_only=True)
    sample["target_last_hidden_states"][5] = torch.nan
    torch.save(sample, path)
    words = (f"data.hidden_states_path={cache}", "output_dir=out/nan")
    assert "00000002.ckpt" in train(vanilla, "dstill_teacher", *words).error


def test_a_drafter_of_the_other_kind_is_no_start(vanilla: Path, tiny_inputs: Path) -> None:
    plain = (f"model.draft_model_config={tiny_inputs / 'draft.json'}", "training.max_steps=1")
    assert train(vanilla, "dstill_teacher", *plain, "output_dir=out/plain").status == 0
    start = ("model.draft_checkpoint_path=out/plain", "output_dir=out/new")
    assert "cannot load draft weights" in train(vanilla, "dstill_teacher", *start).error


def test_a_store_of_the_other_kind_is_refused(vanilla: Path, tmp_path: Path) -> None:
    """Blocks of as many positions, and still other ones: their slots predict in place."""
    config = tiny.draft_config() | {"block_size": tiny.BLOCK_SIZE + 1}
    plain = f"model.draft_model_config={tiny.write_json(tmp_path / 'draft.json', config)}"
    out = (plain, f"output_dir={tmp_path / 'out'}")
    assert train(vanilla, "dstill_teacher", *out, "training.max_steps=1").status == 0
    start = f"model.draft_checkpoint_path={tmp_path / 'out'}"
    words = (plain, start, f"output_dir={tmp_path / 'new'}")
    line = train(vanilla, "dstill_student", *words).error
    assert "another teacher" in line or "prediction_shift=1" in line


def test_the_l1_share_of_stage_2_is_for_dspark(tiny_inputs: Path, tmp_path: Path) -> None:
    write_run(tmp_path, tiny_inputs)
    line = train(tmp_path, "dstill_teacher", "dstill.student.l1_alpha=0.5").error
    assert "dstill.student.l1_alpha" in line


SHARDED = """
import torch
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from specforge_dstill.modes.block_step import BlockStep, Shares
from specforge_dstill.modes.teacher import teacher_strategy
from specforge_dstill.options import DstillOptions
from tests import tiny
from tests.modes.support import make_batch, make_drafter, three_samples

SHARES = Shares(0.1, 0.9, 1.0)


def loss_of(model):
    strategy = teacher_strategy(BlockStep(model, DstillOptions(), SHARES), num_anchors=4, seed=0)
    return strategy.forward_loss(make_batch(three_samples())).loss


distributed.init_process_group("gloo")
for head in tiny.HEADS:
    plain = make_drafter(head=head)
    expected = loss_of(plain)
    expected.backward()
    for sharding in ("SHARD_GRAD_OP", "FULL_SHARD"):
        drafter = make_drafter(head=head)
        wrapped = FSDP(
            drafter,
            device_id=torch.device("cpu"),
            use_orig_params=True,
            sharding_strategy=ShardingStrategy[sharding],
            auto_wrap_policy=ModuleWrapPolicy({type(drafter.draft_model.layers[0])}),
            ignored_modules=[drafter.lm_head, drafter.embed_tokens],
        )
        loss = loss_of(wrapped)
        loss.backward()
        torch.testing.assert_close(loss, expected)
        with FSDP.summon_full_params(wrapped, with_grads=True):
            found = {
                name.replace("_fsdp_wrapped_module.", ""): weight.grad
                for name, weight in drafter.draft_model.named_parameters()
            }
            for name, weight in plain.draft_model.named_parameters():
                torch.testing.assert_close(found[name], weight.grad, msg=name)
        print(head, sharding, "on rank", distributed.get_rank())
distributed.destroy_process_group()
"""


def test_sharded_heads_learn_as_whole_ones(tmp_path: Path) -> None:
    """SpecForge's wrapping, on CPUs: the heads run where their weights are whole."""
    (tmp_path / "sharded.py").write_text(SHARDED)
    outcome = on_torchrun(tmp_path / "sharded.py", ranks=2)
    assert outcome.status == 0, outcome.err
    assert outcome.out.count("on rank") == 2 * 2 * len(tiny.HEADS)
