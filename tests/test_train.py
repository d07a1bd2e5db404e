"""The training command: its words, its plans, its errors, one and two ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from specforge_dstill.console import say
from specforge_dstill.errors import UserError
from specforge_dstill.inputs import check_inputs, check_outputs
from specforge_dstill.launch import (
    follow_torchrun,
    for_role,
    refusals,
)
from specforge_dstill.machine import check_attention, fit_to_machine
from specforge_dstill.mode_names import ALL_MODES, DSTILL_MODES, SPECFORGE_MODES
from specforge_dstill.runfile import load_run, merge
from specforge_dstill.train import main, parse
from tests import tiny
from tests.modes.running import STREAMING

OFFLINE: dict[str, Any] = {
    "model": {"target_model_path": "Org/target", "draft_model_config": "draft"},
    "data": {"hidden_states_path": "cache"},
}
ONLINE: dict[str, Any] = {
    "model": {**OFFLINE["model"], "vocab_mapping_path": "vocab.pt"},
    "data": {"prompts_path": "prompts.jsonl"},
    "deployment": STREAMING,
}


@pytest.fixture(autouse=True)
def one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own, outside any torchrun."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    return tmp_path


def write(document: dict[str, Any], name: str = "dstill.yaml") -> None:
    Path(name).write_text(yaml.safe_dump(document), encoding="utf-8")


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a command with a mistake prints."""
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("specforge-dstill: error: ")
    return line


def plan_of(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main([*argv, "--plan"]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def test_the_mode_names_are_those_that_are_registered() -> None:
    from specforge.algorithms.builtin import builtin_algorithm_registry

    from specforge_dstill.modes import registry
    from specforge_dstill.options import DstillOptions

    assert set(SPECFORGE_MODES) == set(builtin_algorithm_registry().names)
    assert set(ALL_MODES) == set(registry(DstillOptions()).names)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_every_mode_has_a_plan_of_one_rank(capsys: pytest.CaptureFixture[str], mode: str) -> None:
    write(ONLINE if mode == "peagle" else OFFLINE)
    plan = plan_of(capsys, "--mode", mode)
    assert plan["kind"] == ("supervisor" if mode == "peagle" else "worker")


@pytest.mark.parametrize("mode", ["dstill_student", "dflash"])
def test_the_relaunch_of_two_ranks_says_the_same_words(
    capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    write(OFFLINE)
    words = ["deployment.trainer.nproc_per_node=2", "dstill.student.alpha=0.4"]
    (command,) = plan_of(capsys, "--mode", mode, *words)["commands"]
    argv = command["argv"]
    start = argv.index("--no-python")
    assert argv[:start] == [sys.executable, "-m", "torch.distributed.run"]
    rank = argv[argv.index(sys.executable, start) :]
    assert rank[:3] == [sys.executable, "-m", "specforge_dstill.train"]
    args = parse(rank[3:])
    assert (args.mode, args.config, args.role) == (mode, "dstill.yaml", "all")
    assert args.overrides == words
    assert load_run(args.config, args.overrides, args.mode).options.student.alpha == 0.4


def test_words_may_come_in_any_order() -> None:
    args = parse(["a.b=1", "--mode", "dflash", "c.d=2", "--config", "x.yaml", "e.f=-3"])
    assert args.overrides == ["a.b=1", "c.d=2", "e.f=-3"]
    assert (args.mode, args.config) == ("dflash", "x.yaml")


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--mode", "dstill_studnt"], "did you mean dstill_student?"),
        (["--mode", "dflash", "--config", "none.yaml"], "no run file none.yaml"),
        (["--mode", "dflash", "dstill.alhpa=1"], "did you mean dstill.student.alpha?"),
        (["--mode", "dflash", "dstill.steps=0"], "at least 1"),
        (["--mode", "dflash", "training.batch_size=none"], "a whole number, above 0"),
        (["--mode", "dflash", "--rol", "x"], "--rol"),
        (["--mode", "dflash", "--node-rank", "x"], "--node-rank"),
        (["--mode", "dflash", "--node-rank", "3"], "node_rank=3"),
        (["--mode", "dflash", "training.attention_backend=fa"], "attention_backend"),
        (["--mode", "dflash"], "make it with: specforge-dstill capture"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], part: str
) -> None:
    write(OFFLINE)
    assert part in error_of(capsys, *argv)


def test_malformed_yaml_is_one_line_with_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    Path("dstill.yaml").write_text("model:\n  a: {\n", encoding="utf-8")
    assert "dstill.yaml, line 3: not YAML" in error_of(capsys, "--mode", "dflash")


def test_no_run_file_names_init(capsys: pytest.CaptureFixture[str]) -> None:
    assert "specforge-dstill init" in error_of(capsys, "--mode", "dstill_teacher")


def test_a_partial_torchrun_environment_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(OFFLINE)
    monkeypatch.setenv("RANK", "0")
    assert "distributed environment is incomplete" in error_of(capsys, "--mode", "dflash")


def test_the_topology_follows_torchrun() -> None:
    write(OFFLINE)
    config = load_run(None, (), "dflash").config
    env = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
    trainer = follow_torchrun(config, env).deployment.trainer
    assert (trainer.nnodes, trainer.nproc_per_node, trainer.master_addr) == (2, 2, "10.0.0.1")
    assert follow_torchrun(config, {}) is config
    explicit = frozenset({"deployment.trainer.nproc_per_node"})
    assert follow_torchrun(config, env, explicit=explicit) is config


def test_a_topology_that_contradicts_torchrun_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(OFFLINE)
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**env, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    line = error_of(capsys, "--mode", "dflash", "deployment.trainer.nproc_per_node=3")
    assert "WORLD_SIZE=2 does not match" in line


def test_a_producer_profiles_nothing_and_owns_no_services() -> None:
    write(merge(ONLINE, {"profiling": {"enabled": True}}))
    config = for_role(load_run(None, (), "dflash").config, "producer")
    assert config.training.role == "producer"
    assert not config.profiling.enabled


def test_without_a_gpu_defaults_fit_the_machine() -> None:
    write(OFFLINE)
    config, note = fit_to_machine(load_run(None, (), "dflash"), device_type="cpu")
    assert config.training.attention_backend == "sdpa"
    assert config.training.fsdp_sharding == "NO_SHARD"
    assert config.model.torch_dtype == "float32"
    assert note is not None
    assert "training.attention_backend=sdpa" in note


def test_what_the_user_wrote_stays() -> None:
    write(OFFLINE)
    words = [
        "model.torch_dtype=bfloat16",
        "training.attention_backend=eager",
        "training.fsdp_sharding=FULL_SHARD",
    ]
    run = load_run(None, words, "dflash")
    assert fit_to_machine(run, device_type="cpu") == (run.config, None)


def test_with_a_gpu_nothing_moves() -> None:
    write(OFFLINE)
    run = load_run(None, (), "dflash")
    assert fit_to_machine(run, device_type="cuda") == (run.config, None)


def test_an_attention_that_needs_a_gpu_is_refused_without_one() -> None:
    write(OFFLINE)
    run = load_run(None, ["training.attention_backend=flex_attention"], "dflash")
    with pytest.raises(UserError, match="flex_attention needs a GPU, and there is none here"):
        fit_to_machine(run, device_type="cpu")
    plain = load_run(None, (), "dflash")
    with pytest.raises(UserError, match="--mode dflash needs flex_attention"):
        fit_to_machine(plain, device_type="cpu", attention_backends={"flex_attention"})


@pytest.mark.parametrize(
    ("mode", "dtype", "part"),
    [
        ("dstill_teacher", "bfloat16", "is for --mode dstill_collect alone; set it under modes"),
        ("dstill_collect", "float32", "needs model.torch_dtype: bfloat16 or float16"),
        ("dstill_collect", "bfloat16", "needs flash-attn: pip install"),
    ],
)
def test_flash_attn_where_it_cannot_be_used(mode: str, dtype: str, part: str) -> None:
    write(OFFLINE)
    words = ["training.attention_backend=fa", f"model.torch_dtype={dtype}"]
    with pytest.raises(UserError, match=part):
        check_attention(load_run(None, words, mode))
    check_attention(load_run(None, words, "eagle3"))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["data.hidden_states_path=empty"], "holds no feature file"),
        (["model.target_model_path=./none"], "model.target_model_path: ./none does not exist"),
        (["model.target_model_path=none"], r"none does not exist \(paths count from"),
        (["model.draft_model_config=none.json"], "model.draft_model_config"),
        (["model.draft_checkpoint_path=/none"], "model.draft_checkpoint_path"),
        (["model.draft_checkpoint_path=cache/none"], "model.draft_checkpoint_path"),
        (["model.draft_checkpoint_path=nowhere"], "model.draft_checkpoint_path: nowhere does not"),
        (["training.resume_from=out/a"], "training.resume_from"),
    ],
)
def test_inputs_that_are_not_there_are_named(words: list[str], part: str) -> None:
    write(OFFLINE)
    Path("empty").mkdir()
    Path("cache").mkdir()
    Path("cache/a.ckpt").touch()
    with pytest.raises(UserError, match=part):
        check_inputs(load_run(None, words, "dflash").config)
    check_inputs(load_run(None, (), "dflash").config)


@pytest.mark.parametrize("mode", ["dstill_collect", "dstill_student"])
def test_a_teacher_that_is_not_trained_yet_is_told_how(mode: str) -> None:
    write(OFFLINE)
    Path("cache").mkdir()
    Path("cache/a.ckpt").touch()
    words = ["model.draft_checkpoint_path=out/dstill_teacher-latest"]
    Path("out").mkdir()
    with pytest.raises(UserError, match=r"train the teacher first: --mode dstill_teacher$"):
        check_inputs(load_run(None, words, mode).config)
    with pytest.raises(UserError, match=r"dstill_teacher-latest does not exist \(.*\)$"):
        check_inputs(load_run(None, words, "dflash").config)


def test_a_finished_run_is_not_started_over() -> None:
    """SpecForge would delete its later checkpoints at the first save."""
    write(OFFLINE)
    config = load_run(None, ["output_dir=out", "run_id=first"], "dflash").config
    check_outputs(config)
    Path("out/first-step7").mkdir(parents=True)
    check_outputs(config)  # what a cut-off save leaves is nothing to lose
    Path("out/first-step7/training_state.pt").touch()
    with pytest.raises(UserError, match=r"first-step7\).*training\.resume_from=out/first-step7,"):
        check_outputs(config)
    Path("out/first-latest").symlink_to("first-step7")
    with pytest.raises(UserError, match=r"first-step7.*training\.resume_from=out/first-latest"):
        check_outputs(config)
    for words in (["run_id=second"], ["run_id=first", "training.resume_from=out"]):
        check_outputs(load_run(None, ["output_dir=out", *words], "dflash").config)


def test_the_last_checkpoint_is_that_of_the_highest_step() -> None:
    write(OFFLINE)
    for name in ("first-step900", "first-step1000", "first-step2-step9000", "other-step2000"):
        Path("out", name).mkdir(parents=True)
        Path("out", name, "training_state.pt").touch()
    with pytest.raises(UserError, match=r"resume_from=out/first-step1000,"):
        check_outputs(load_run(None, ["output_dir=out", "run_id=first"], "dflash").config)


def test_a_checkpoint_to_go_on_from_is_found_and_whole_before_the_ranks_join() -> None:
    write(OFFLINE)
    Path("cache").mkdir()
    Path("cache/a.ckpt").touch()

    def check() -> None:
        check_inputs(load_run(None, ["training.resume_from=out"], "dflash").config)

    Path("out").mkdir()
    with pytest.raises(UserError, match=r"^training\.resume_from: no complete checkpoint"):
        check()
    state = Path("out/teacher-step2/training_state.pt")
    state.parent.mkdir()
    torch.save({"global_step": 2}, state)
    check()
    whole = state.read_bytes()
    state.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=rf"^training\.resume_from: .*{state} cannot be read"):
        check()
    state.write_bytes(whole)
    shutil.copytree(state.parent, "out/student-step3")
    with pytest.raises(UserError, match=r"^training\.resume_from: .* multiple checkpoint runs"):
        check()


def test_an_output_folder_that_cannot_be_made_is_told_before_training() -> None:
    write(OFFLINE)
    Path("file").touch()
    with pytest.raises(UserError, match="file/out"):
        check_outputs(load_run(None, ["output_dir=file/out"], "dflash").config)


def test_only_refusals_lose_their_traceback() -> None:
    with pytest.raises(UserError, match="one line"), refusals(every_value_error=True):
        raise ValueError("one\n line")
    with pytest.raises(ValueError, match="bug"), refusals(every_value_error=False):
        raise ValueError("a bug of ours")
    with pytest.raises(KeyError), refusals(every_value_error=True):
        raise KeyError("x")


def test_one_rank_speaks_for_its_node(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    say("hello")
    monkeypatch.setenv("LOCAL_RANK", "0")
    say("hello")
    assert capsys.readouterr().err == "specforge-dstill: hello\n"


def test_torchruns_summary_ends_with_the_mistake(
    one_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = one_folder / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    line = error_of(capsys, "--mode", "dstil_teacher")
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(path))
    summary = str(ChildFailedError("specforge.train", {0: failure}))
    told = line.removeprefix("specforge-dstill: error: ")
    assert f"traceback : {told}\n=====" in summary
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(one_folder / "none" / "error.json"))
    assert error_of(capsys, "--mode", "dstil_teacher") == line


def start(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[1])
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def write_tiny(folder: Path) -> None:
    tiny.save_target(folder / "target")
    tiny.save_features(folder / "cache", samples=4)
    tiny.write_json(folder / "draft.json", tiny.draft_config())
    write(
        {
            "model": {"target_model_path": "./target", "draft_model_config": "./draft.json"},
            "data": {"hidden_states_path": "./cache", "dataloader_num_workers": 0},
            "training": {"num_epochs": 1, "num_anchors": 4, "log_interval": 1},
        }
    )


@pytest.mark.slow
def test_one_rank_and_two_train_under_torchrun(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    words = ["-m", "specforge_dstill.train", "--mode", "dflash"]
    one = start(*words, "run_id=one", cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    assert "no GPU here" in one.stderr or "cuda" in one.stderr
    two = start(
        *("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        *(*words, "run_id=two"),
        cwd=tmp_path,
    )
    assert two.returncode == 0, two.stderr
    assert (tmp_path / "output/one-step4").is_dir()
    assert (tmp_path / "output/two-step2").is_dir()


@pytest.mark.slow
def test_plain_python_launches_its_ranks_and_each_mistake_is_told_once(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    words = ["-m", "specforge_dstill.train", "--mode", "dflash"]
    two = start(*words, "deployment.trainer.nproc_per_node=2", cwd=tmp_path)
    assert two.returncode == 0, two.stderr
    assert (tmp_path / "output/dflash-step2").is_dir()
    wrong = start(
        *("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        *(*words, "dstill.alhpa=1"),
        cwd=tmp_path,
    )
    assert wrong.returncode != 0
    assert wrong.stderr.count("specforge-dstill: error:") == 1
    assert "traceback : dstill.alhpa: unknown option" in wrong.stderr


@pytest.mark.parametrize("mode", DSTILL_MODES)
def test_help_names_every_mode(capsys: pytest.CaptureFixture[str], mode: str) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    assert mode in capsys.readouterr().out
