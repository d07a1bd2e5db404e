"""Evaluation while training: what is logged, which checkpoint is the best, and what it disturbs."""

from __future__ import annotations

import contextlib
import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from specforge.training.checkpoint import CheckpointManager

from specforge_dstill.modes.assembly import load_drafter
from specforge_dstill.modes.best_checkpoint import best_keeper, point_at_best
from specforge_dstill.modes.held_out import HeldOutBlocks
from specforge_dstill.runfile import load_run
from tests import tiny
from tests.modes.conftest import Stages, TwoRanks
from tests.modes.running import (
    Outcome,
    commands_on_two_ranks,
    draft_of,
    on_torchrun,
    same_weights,
    start,
    train,
    write_run,
)
from tests.modes.test_training_runs import await_checkpoint

MODES = ("dstill_teacher", "dstill_student", "dflash")
# Six epochs of three steps.
WORDS = ("training.learning_rate=1e-2", "training.num_epochs=6", "training.save_interval=3")
EVERY = 3
KEYS = ("input_ids", "loss_mask", "hidden_states")


@dataclass(frozen=True)
class Runs:
    """A folder in which each mode was trained twice, without evaluations and with them."""

    folder: Path
    held_out: Path
    plain: dict[str, Outcome]
    evaluated: dict[str, Outcome]

    @property
    def words(self) -> tuple[str, ...]:
        return (*WORDS, *evaluating(self.held_out))


def evaluating(held_out: Path) -> tuple[str, ...]:
    return (f"data.eval_hidden_states_path={held_out}", f"training.eval_interval={EVERY}")


def scores(outcome: Outcome) -> dict[int, dict[str, float]]:
    """The last thing that each step logged, of the evaluated ones."""
    found = outcome.metrics.items()
    return {step: logged for step, logged in found if any("eval/" in name for name in logged)}


def losses(outcome: Outcome) -> list[str]:
    """What training logged, but for times and evaluations."""
    lines = [line for line in outcome.out.splitlines() if line.startswith("step ")]
    return [line.partition("'perf/")[0] for line in lines if "eval/" not in line]


def save_counting(folder: Path, **options: int) -> Path:
    """A cache of sequences that count, of which a drafter learns something within seconds."""
    for path in sorted(tiny.save_features(folder, **options).rglob("*.ckpt")):
        sample = torch.load(path, weights_only=True)
        first = int(sample["input_ids"][0])
        sample["input_ids"] = 4 + (first + torch.arange(len(sample["input_ids"]))) % 7
        torch.save(sample, path)
    return folder


@pytest.fixture(scope="module")
def runs(stages: Stages, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = stages.copy_to(tmp_path_factory.mktemp("evaluated"))
    cache = save_counting(folder / "cache", samples=12)
    held_out = save_counting(folder / "held-out", samples=5, seed=9)
    write_run(folder, stages.inputs)
    document = yaml.safe_load((folder / "dstill.yaml").read_text())
    document["data"]["hidden_states_path"] = str(cache)
    document["dstill"]["trajectories"] = "counting"
    for mode in ("dstill_collect", "dstill_student"):
        document["modes"][mode]["model"]["draft_checkpoint_path"] = (
            "out/plain/dstill_teacher-step18"
        )
    (folder / "dstill.yaml").write_text(yaml.safe_dump(document))
    runs = Runs(folder, held_out, {}, {})
    for mode in MODES:
        for kind, words in (("plain", WORDS), ("evaluated", runs.words)):
            outcome = train(folder, mode, *words, f"output_dir=out/{kind}")
            assert outcome.status == 0, outcome.err
            getattr(runs, kind)[mode] = outcome
        if mode == "dstill_teacher":
            assert train(folder, "dstill_collect").status == 0
    return runs


@pytest.mark.parametrize("mode", MODES)
def test_training_is_the_same_bit_for_bit(runs: Runs, mode: str) -> None:
    """DFlash draws its anchors from torch's own generator: that is where it was, too."""
    assert losses(runs.evaluated[mode]) == losses(runs.plain[mode])
    assert len(losses(runs.plain[mode])) == 18
    last = f"{mode}-step18"
    kinds = [draft_of(runs.folder / "out" / kind / last) for kind in ("plain", "evaluated")]
    assert same_weights(*kinds)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_logged_is_the_acceptance_of_the_saved_weights(runs: Runs, mode: str) -> None:
    """Scored once more from the checkpoint on the disk, to the last bit."""
    logged = scores(runs.evaluated[mode])
    assert list(logged) == [3, 6, 9, 12, 15, 18]
    with contextlib.chdir(runs.folder):
        config = load_run(None, ("training.attention_backend=sdpa",), mode).config
        for step, numbers in logged.items():
            checkpoint = f"out/evaluated/{mode}-step{step}"
            drafter = load_drafter(config, checkpoint, device=torch.device("cpu"))
            blocks = HeldOutBlocks(drafter, (1, 3), anchors_per_sample=32, rows_per_tile=1024)
            sums = torch.zeros(2, 2, dtype=torch.float64)
            for path in sorted(runs.held_out.rglob("*.ckpt")):
                sample = torch.load(path, weights_only=True)
                sums += blocks.sums(*(sample[name] for name in KEYS))
            tau = (sums[:, 0] / sums[:, 1]).tolist()
            assert numbers == {"eval/tau_1": tau[0], "eval/tau_3": tau[1]}
    assert len({numbers["eval/tau_3"] for numbers in logged.values()}) > 1, "it does not move"


@pytest.mark.parametrize(
    ("mode", "passes"), [("dstill_teacher", 3), ("dstill_student", 1), ("dflash", 1)]
)
def test_the_best_is_the_first_with_the_highest_acceptance(
    runs: Runs, mode: str, passes: int
) -> None:
    """By K passes for the teacher, by one for the others."""
    logged = scores(runs.evaluated[mode])
    name = f"eval/tau_{passes}"
    best = max(logged, key=lambda step: (logged[step][name], -step))
    output = runs.folder / "out/evaluated"
    record = json.loads((output / f"{mode}.best_meta.json").read_text())
    assert (record["step"], record["metric"]) == (best, name)
    assert record["score"] == logged[best][name]
    assert record["metrics"] == logged[best]
    assert (output / f"{mode}-best").resolve().name == f"{mode}-step{best}"
    assert f"out/evaluated/{mode}-best" in runs.evaluated[mode].err


def test_the_best_can_be_picked_by_other_passes(runs: Runs) -> None:
    told = ("dstill.evaluation.passes=[2,5]", "dstill.evaluation.best_by=5")
    words = (*runs.words, *told, "training.max_steps=3", "output_dir=out/5")
    outcome = train(runs.folder, "dstill_student", *words)
    assert outcome.status == 0, outcome.err
    assert scores(outcome)[3].keys() == {"eval/tau_2", "eval/tau_5"}
    record = json.loads((runs.folder / "out/5/dstill_student.best_meta.json").read_text())
    assert record["metric"] == "eval/tau_5"


def test_the_best_is_an_input_of_whatever_takes_a_checkpoint(runs: Runs) -> None:
    start = "model.draft_checkpoint_path=out/evaluated/dstill_teacher-best"
    outcome = train(runs.folder, "dstill_collect", start, "dstill.trajectories=of-the-best")
    assert outcome.status == 0, outcome.err


# --- rotation, resume, kills


def with_a_high_mark(folder: Path, mode: str, step: int) -> None:
    """Record a step as so good that no later one is better."""
    record = folder / f"{mode}.best_meta.json"
    values = json.loads(record.read_text())
    record.write_text(json.dumps({**values, "score": 99.0, "step": step}))


@pytest.mark.parametrize("evaluated", [True, False], ids=["evaluated", "no longer evaluated"])
def test_a_resumed_run_keeps_the_old_best_through_rotation(
    runs: Runs, tmp_path: Path, evaluated: bool
) -> None:
    """Also where the killed run had not yet pointed at what it had recorded."""
    folder = runs.folder
    out = f"output_dir={tmp_path / 'out'}"
    words = (*runs.words, out, "training.max_checkpoints=1", "training.total_steps=18")
    assert train(folder, "dstill_teacher", *words, "training.max_steps=3").status == 0
    with_a_high_mark(tmp_path / "out", "dstill_teacher", 3)
    (tmp_path / "out/dstill_teacher-best").unlink()
    words = (*words, f"training.resume_from={tmp_path / 'out'}", "training.max_steps=12")
    off = ("data.eval_hidden_states_path=", "training.eval_interval=0")
    resumed = train(folder, "dstill_teacher", *words, *(() if evaluated else off))
    assert resumed.status == 0, resumed.err
    assert "best meta" not in resumed.err
    whole = scores(runs.evaluated["dstill_teacher"])
    expected = {step: whole[step] for step in (6, 9, 12)}
    assert scores(resumed) == (expected if evaluated else {})
    left = sorted(path.name for path in (tmp_path / "out").glob("*-step*"))
    assert left == ["dstill_teacher-step12", "dstill_teacher-step3"]
    assert (tmp_path / "out/dstill_teacher-best").resolve().name == "dstill_teacher-step3"


def test_a_killed_run_keeps_its_last_best(runs: Runs, tmp_path: Path) -> None:
    words = (*runs.words, "training.save_interval=1", f"output_dir={tmp_path}")
    with start(runs.folder, "dstill_student", *words) as process:
        await_checkpoint(tmp_path, 7, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    record = json.loads((tmp_path / "dstill_student.best_meta.json").read_text())
    logged = scores(runs.evaluated["dstill_student"])
    assert record["metrics"] == logged[record["step"]]
    best = tmp_path / "dstill_student-best"
    assert best.resolve().name == f"dstill_student-step{record['step']}"
    assert draft_of(best)


def test_a_link_and_a_record_that_a_kill_set_apart_are_joined(tmp_path: Path) -> None:
    """The record is what counts; without one nothing is made."""
    manager = CheckpointManager(str(tmp_path), "run", best_metric="eval/tau_1")
    point_at_best(manager)
    assert list(tmp_path.iterdir()) == []
    for step in (2, 4):
        manager.save({}, step)
    manager.update_best(2, {"eval/tau_1": 1.5})
    (tmp_path / "run-best").unlink()
    (tmp_path / "run-best").symlink_to("run-step4")
    config = load_config_of(tmp_path)
    assert best_keeper(config, passes=1).best_step == 2
    assert (tmp_path / "run-best").readlink() == Path("run-step2")


def load_config_of(folder: Path) -> object:
    write_run(folder, folder, training__max_checkpoints=2)
    words = ("run_id=run", f"output_dir={folder}")
    return load_run(str(folder / "dstill.yaml"), words, "dflash").config


# --- several ranks


def test_two_ranks_score_what_one_does(runs: Runs, tmp_path: Path) -> None:
    """Five samples and one sample on two ranks; and a file that one rank cannot read."""
    folder = tmp_path
    write_run(folder, runs.folder, training__batch_size=2)
    document = yaml.safe_load((runs.folder / "dstill.yaml").read_text())
    document["training"]["batch_size"] = 2
    (folder / "dstill.yaml").write_text(yaml.safe_dump(document))
    one = save_counting(folder / "one", samples=1, seed=9)
    broken = save_counting(folder / "broken", samples=4)
    sample = torch.load(broken / "data/00000/00000003.ckpt", weights_only=True)
    sample["hidden_states"][20] = torch.nan
    torch.save(sample, broken / "data/00000/00000003.ckpt")
    words = ("--mode", "dstill_teacher", *WORDS)
    outcome = commands_on_two_ranks(
        folder,
        {
            "five": [*words, *evaluating(runs.held_out), "output_dir=out/five"],
            "one": [*words, *evaluating(one), "output_dir=out/one", "training.max_steps=3"],
            "broken": [*words, *evaluating(broken), "output_dir=out/broken"],
        },
    )
    two = TwoRanks(folder, outcome)
    expected = scores(runs.evaluated["dstill_teacher"])
    _, _, rest = outcome.out.partition("begin five\n")
    found = scores(Outcome(0, rest.partition("end five\n")[0], ""))
    # The ranks sum the gradients in another order: a draft here and there may differ.
    assert found.keys() == expected.keys()
    for step, numbers in expected.items():
        assert found[step] == pytest.approx(numbers, abs=0.05)
    assert (folder / "out/five/dstill_teacher-best/training_state.pt").exists()
    assert two.statuses("one") == [0, 0]
    assert (folder / "out/one/dstill_teacher-best").resolve().name == "dstill_teacher-step3"
    assert two.statuses("broken") == [2, 2]
    assert "00000003.ckpt: its hidden_states hold NaN" in outcome.err


SHARDED = """
import torch
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from specforge_dstill.modes.checkpoints import draft_weights
from specforge_dstill.modes.in_training import full_weights
from tests.modes.support import make_drafter

distributed.init_process_group("gloo")
drafter = make_drafter()
wrapped = FullyShardedDataParallel(
    drafter,
    device_id=torch.device("cpu"),
    use_orig_params=True,
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    auto_wrap_policy=ModuleWrapPolicy({type(drafter.draft_model.layers[0])}),
    ignored_modules=[drafter.lm_head, drafter.embed_tokens],
)
own = sum(parameter.numel() for parameter in wrapped.parameters())
weights, whole = draft_weights(full_weights(wrapped)), make_drafter().draft_model.state_dict()
assert own < sum(tensor.numel() for tensor in make_drafter().state_dict().values())
assert weights.keys() == whole.keys()
assert all(torch.equal(weights[name], whole[name]) for name in whole)
assert own == sum(parameter.numel() for parameter in wrapped.parameters())
print(f"whole on rank {distributed.get_rank()}")  # in one piece: ranks write at once
distributed.destroy_process_group()
"""


def test_every_rank_has_the_whole_weights_of_a_sharded_model(tmp_path: Path) -> None:
    """SpecForge's wrapping, on CPUs; SpecForge itself shards on accelerators only."""
    (tmp_path / "sharded.py").write_text(SHARDED)
    outcome = on_torchrun(tmp_path / "sharded.py", ranks=2)
    assert outcome.status == 0, outcome.err
    assert all(f"whole on rank {rank}" in outcome.out for rank in range(2))


# --- what is told at the start


def refusal(runs: Runs, *words: str, held_out: Path | None = None) -> str:
    cache = evaluating(held_out or runs.held_out)
    out = runs.folder / "out/refused"
    line = train(runs.folder, "dstill_student", *cache, *words, f"output_dir={out}").error
    assert not out.exists()
    return line


def test_what_cannot_be_evaluated_is_refused_at_the_start(runs: Runs, tmp_path: Path) -> None:
    assert "no folder" in refusal(runs, held_out=tmp_path / "none")
    assert "block_size" in refusal(runs, "dstill.evaluation.passes=[1,9]")
    assert "configured together" in refusal(runs, "training.eval_interval=0")
    save_counting(tmp_path / "narrow", samples=2)
    for path in (tmp_path / "narrow").rglob("*.ckpt"):
        sample = torch.load(path, weights_only=True)
        torch.save({**sample, "hidden_states": sample["hidden_states"][:, :32]}, path)
    assert "draft config wants layers [1,2]" in refusal(runs, held_out=tmp_path / "narrow")


def test_a_run_too_short_for_an_evaluation_is_told(runs: Runs) -> None:
    """Else a user looks for MODE-best when all is over."""
    words = ("training.max_steps=3", "training.eval_interval=4", "output_dir=out/brief")
    outcome = train(runs.folder, "dflash", *runs.words, *words)
    assert outcome.status == 0
    assert "nothing will be evaluated" in outcome.err
    assert "the run ends at step 3" in outcome.err


def test_evaluating_on_the_training_cache_is_told(runs: Runs) -> None:
    words = (*evaluating(runs.folder / "cache"), "training.max_steps=3", "output_dir=out/same")
    with pytest.warns(UserWarning, match="is the training cache"):
        assert train(runs.folder, "dflash", *words).status == 0
