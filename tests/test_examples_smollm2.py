"""The SmolLM2 example: its words, its commands, its sizes, stopping and going on."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from specforge_dstill.cli import VERBS
from specforge_dstill.console import Parser
from specforge_dstill.runfile import load_run
from tests import tiny

FOLDER = Path(__file__).parents[1] / "examples" / "smollm2"
MODES = {
    "dflash": "dstill_teacher",  # with the root as its only reveal level
    "dflash-more": "dstill_teacher",
    **{mode: mode for mode in ("dstill_teacher", "dstill_collect", "dstill_student")},
}


def load(name: str) -> ModuleType:
    """A script of the example as a module."""
    spec = importlib.util.spec_from_file_location(f"smollm2_{name}", FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


run = load("run")
prepare = load("prepare_target")


@pytest.fixture(autouse=True)
def one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(*more: str) -> list[str]:
    return ["--train-prompts", "t.jsonl", "--eval-prompts", "a=a.jsonl", "b=hub:x/b", *more]


def commands_of(*more: str) -> dict[str, list[str]]:
    args = run.parse(words(*more))
    staged = run.stages(args, args.work.resolve())
    return {name: command for stage in staged for name, command in stage.commands.items()}


@pytest.mark.parametrize(
    ("more", "size", "minutes"),
    [([], "default", 110), (["--smoke"], "smoke", None), (["--full", "--minutes", "5"], "full", 5)],
)
def test_the_size_decides_the_minutes(more: list[str], size: str, minutes: float | None) -> None:
    args = run.parse(words("--ranks", "1", *more))
    assert (args.size, args.minutes, args.ranks) == (size, minutes, 1)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--smoke", "--full"], "not allowed with"),
        (["--ranks", "3"], "does not divide the 2 samples"),
        (["--ranks", "0"], "does not divide"),
        (["--eval-prompts", "gsm8k.jsonl"], "is not NAME=FILE"),
    ],
)
def test_mistakes_end_with_status_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], part: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run.parse(words(*argv))
    assert ended.value.code == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize("size", run.SIZES)
def test_every_command_is_one_that_its_program_takes(size: str) -> None:
    commands = commands_of("--ranks", "2", *([] if size == "default" else [f"--{size}"]))
    assert list(commands) == [
        *("target", "regenerate", "capture", "dflash", "dstill_teacher", "dstill_collect"),
        *("dstill_student", "dflash-more", "evaluate", "decode", "report"),
    ]
    for name, command in commands.items():
        verb = "evaluate" if name == "decode" else name
        if verb in VERBS:
            module = importlib.import_module(VERBS[verb].module)
            parser = Parser()
            module.add_arguments(parser)
            parser.parse_args(command[command.index(verb) + 1 :])
        elif "--mode" in command:
            assert command[command.index("--mode") + 1] == MODES[name]
            assert command[command.index("--nproc_per_node") + 1] == "2"


def test_the_baseline_is_trained_on_as_the_student_is(one_folder: Path) -> None:
    for checkpoint, expected in (
        (None, "model.draft_checkpoint_path=output/dflash-latest"),
        ("output/dflash-more-latest", "training.resume_from=output/dflash-more-latest"),
    ):
        if checkpoint:
            (one_folder / "w" / checkpoint).mkdir(parents=True)
        command = commands_of("--smoke", "--work", "w")["dflash-more"]
        overrides = [word for word in command if "=" in word]
        assert expected in overrides
        Path("dstill.yaml").write_text(yaml.safe_dump(run.run_document(run.SIZES["smoke"], 1)))
        more = load_run("dstill.yaml", overrides, "dstill_teacher")
        student = load_run("dstill.yaml", mode="dstill_student").config.training
        assert more.config.run_id == "dflash-more"
        assert more.options.steps == 1
        assert more.config.training.num_epochs == student.num_epochs
        assert more.config.training.learning_rate == student.learning_rate


def test_the_baseline_is_a_teacher_of_one_level(one_folder: Path) -> None:
    overrides = [word for word in commands_of("--smoke")["dflash"] if "=" in word]
    assert overrides == ["dstill.steps=1", "run_id=dflash"]


def test_rivals_train_side_by_side_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def groups() -> list[list[str]]:
        args = run.parse(words("--ranks", "1"))
        return [list(stage.commands) for stage in run.stages(args, args.work.resolve())]

    monkeypatch.setattr(run, "_gpus", lambda: 0)
    assert ["dflash", "dstill_teacher"] in groups()
    assert ["dstill_student", "dflash-more"] in groups()
    monkeypatch.setattr(run, "_gpus", lambda: 2)
    assert all(len(group) == 1 for group in groups())


def test_the_numbers_of_a_size_reach_its_commands(one_folder: Path) -> None:
    commands = commands_of("--smoke")
    evaluate, regenerate = commands["evaluate"], commands["regenerate"]
    assert regenerate[regenerate.index("--limit") + 1] == "64"
    assert regenerate[regenerate.index("--prompts") + 1] == str(one_folder / "t.jsonl")
    assert f"a={one_folder / 'a.jsonl'}" in evaluate
    assert "b=hub:x/b" in evaluate
    assert "student=output/dstill_student-latest:1" in evaluate
    assert "--limit" not in commands_of("--full")["evaluate"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("size", run.SIZES)
def test_the_run_file_of_a_size_holds_for_every_mode(size: str, ranks: int) -> None:
    Path("dstill.yaml").write_text(yaml.safe_dump(run.run_document(run.SIZES[size], ranks)))
    for mode in set(MODES.values()):
        loaded = load_run("dstill.yaml", mode=mode)
        assert loaded.config.run_id == mode
        assert loaded.options.steps == 8
        assert loaded.options.collect.top_k == 16
        assert loaded.config.training.save_interval > 0
        starts = loaded.config.model.draft_checkpoint_path
        assert starts == (None if mode == "dstill_teacher" else "output/dstill_teacher-latest")
    one = run.run_document(run.SIZES[size], 1)["training"]["batch_size"]
    assert loaded.config.training.batch_size * ranks == one


@pytest.mark.parametrize("name", ["dflash", "dstill_teacher", "dstill_student"])
def test_training_goes_on_from_its_newest_checkpoint(one_folder: Path, name: str) -> None:
    def loaded() -> Any:
        overrides = [w for w in commands_of("--smoke", "--work", "w")[name] if "=" in w]
        return load_run("w/dstill.yaml", overrides, MODES[name])

    assert run.main(words("--smoke", "--work", "w"), runner=stopped_by(KeyboardInterrupt)) == 75
    assert loaded().config.training.resume_from is None
    (Path("w/output") / f"{name}-latest").mkdir(parents=True)
    resumed = loaded().config
    assert resumed.training.resume_from == f"output/{name}-latest"
    assert resumed.model.draft_checkpoint_path is None


def stopped_by(error: type[BaseException]) -> Any:
    def runner(todo: Sequence[Any], work: Path, ranks: int) -> None:
        raise error

    return runner


def test_a_stop_says_that_the_same_command_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(words("--smoke"), runner=stopped_by(TimeoutError)) == 75
    assert "time is up" in capsys.readouterr().out


def test_when_time_is_up_the_running_command_is_ended_and_its_stage_is_not_done() -> None:
    def runner(todo: Sequence[Any], work: Path, ranks: int) -> None:
        program = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
        run.run_stages([run.Stage("long", {"long": [sys.executable, "-c", program]})], work)

    start = time.monotonic()
    assert run.main(words("--smoke", "--work", "w", "--minutes", "0.03"), runner=runner) == 75
    assert time.monotonic() - start < 10
    assert not Path("w/logs/long.done").exists()
    if Path("w/pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(Path("w/pid").read_text()), 0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_the_whole_pipeline_ends_with_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    def runner(todo: Sequence[Any], work: Path, ranks: int) -> None:
        assert [stage.name for stage in todo][-3:] == ["evaluate", "decode", "report"]
        for table in ("results/table.txt", "decoded/decoding.txt"):
            (work / table).parent.mkdir()
            (work / table).write_text(f"teacher  {table}\n")

    assert run.main(words("--smoke"), runner=runner) == 0
    said = capsys.readouterr().out
    assert "teacher  results/table.txt" in said
    assert "teacher  decoded/decoding.txt" in said


def test_a_folder_with_a_run_of_other_settings_is_refused() -> None:
    assert run.main(words("--smoke"), runner=stopped_by(TimeoutError)) == 75
    assert run.main(words("--smoke"), runner=stopped_by(TimeoutError)) == 75
    with pytest.raises(SystemExit, match="size smoke, not default"):
        run.main(words(), runner=stopped_by(TimeoutError))


def test_the_mask_token_is_special_and_never_met() -> None:
    specials = {0: "<|end|>", 1: "<|im_start|>", 2: "<used>", 3: "<free-1>", 4: "<free-2>"}
    free = prepare.unused_specials(specials, template="{{ '<|im_start|>' }}", taken=[0])
    assert free == [2, 3, 4]
    embeddings = torch.tensor([[0.0], [1.0], [2.0], [3.0], [3.0], [3.0]])
    assert prepare.untouched(free, embeddings) == [3, 4]


def test_the_draft_config_is_one_that_the_drafter_takes(one_folder: Path) -> None:
    from specforge.modeling.auto import AutoDraftModel
    from specforge.training.model_loading import load_draft_config_source
    from transformers import LlamaConfig

    target = LlamaConfig(
        vocab_size=tiny.VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=30,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rope_theta=100_000.0,
    )
    Path("draft.json").write_text(json.dumps(prepare.draft_config(target, mask_token_id=16)))
    draft = AutoDraftModel.from_config(load_draft_config_source("draft.json"))
    assert list(draft.target_layer_ids) == [1, 8, 14, 20, 27]
    assert (draft.block_size, draft.mask_token_id, len(draft.layers)) == (16, 16, 2)
    assert draft.config.rope_parameters["rope_theta"] == 100_000.0
