from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from specforge_dstill.data import benchmarks, regenerate
from specforge_dstill.data.answers_file import AnswersFile, settings_path
from specforge_dstill.data.conversations import read_conversations, read_prompts
from specforge_dstill.data.settings import read_settings
from specforge_dstill.errors import UserError

from .conftest import write_lines


def command(*words: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    regenerate.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def regenerate_here(target: Path, prompts: Path, output: Path, *more: object) -> int:
    return regenerate.run(
        command(
            "--target", target, "--prompts", prompts, "--output", output,
            "--max-new-tokens", 6, "--batch-size", 2, *more,
        )
    )  # fmt: skip


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows: list[dict[str, Any]] = [{"turns": [f"w{i} w{i + 1}"]} for i in range(5)]
    rows.insert(2, {"turns": ["w9", "w8 w7"], "id": "two", "system": "w5"})
    return write_lines(tmp_path / "prompts.jsonl", rows)


def test_every_turn_is_answered(target: Path, prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "answers.jsonl"
    assert regenerate_here(target, prompts, output) == 0
    found = read_conversations(output)
    assert [c.id for c in found] == [p.id for p in read_prompts(prompts)]
    two = found[2]
    assert [m.role for m in two.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [m.content for m in two.messages if m.role == "user"] == ["w9", "w8 w7"]
    # Random weights rarely stop within six tokens; a cut answer says so and keeps its words.
    cut = [m for c in found for m in c.messages if m.finish == "length"]
    assert cut
    assert all(len(m.content.split()) >= 1 for m in cut)
    settings = read_settings(settings_path(output))
    assert settings is not None
    assert settings["temperature"] == 0.7
    assert settings["target"] == str(target)
    assert settings["prompts"] == "prompts.jsonl"
    assert "transformers" in settings["versions"]


def test_stop_token_is_implied(
    target: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specforge_dstill.data import answer_transformers

    monkeypatch.setattr(
        answer_transformers, "generate_batch", lambda m, p, d, s: [[11, 12, 2] for _ in p]
    )
    output = tmp_path / "answers.jsonl"
    regenerate_here(target, prompts, output)
    (message,) = [m for m in read_conversations(output)[0].messages if m.role == "assistant"]
    assert (message.content, message.finish) == ("w1 w2", None)


def test_a_benchmark_is_answered_by_its_name(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that its answers can be captured, for evaluate --captured."""
    asked = []

    def load(dataset: str, split: str, *, config: str | None = None) -> list[dict[str, str]]:
        asked.append(dataset)
        return [{"question": "w1 w2"}] * 9

    monkeypatch.setattr(benchmarks, "load_hub", load)
    output = tmp_path / "answers.jsonl"
    regenerate_here(target, Path("gsm8k"), output, "--limit", "2")
    assert asked == [benchmarks.BENCHMARKS["gsm8k"].dataset]
    assert [c.id for c in read_conversations(output)] == ["gsm8k-000000", "gsm8k-000001"]


def test_what_the_generation_config_adds_is_told(
    target: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(target, tmp_path / "target")
    path = tmp_path / "target" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "repetition_penalty": 1.3}))
    assert regenerate_here(tmp_path / "target", prompts, tmp_path / "told.jsonl") == 0
    assert "generation_config.json sets repetition_penalty = 1.3, " in capsys.readouterr().err
    assert regenerate_here(target, prompts, tmp_path / "not.jsonl") == 0
    assert "generation_config.json" not in capsys.readouterr().err


def test_resume_after_a_torn_line(target: Path, prompts: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    regenerate_here(target, prompts, whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(lines[4] + lines[1] + lines[2][:30])
    (tmp_path / "torn.jsonl.settings.json").write_bytes(
        (tmp_path / "whole.jsonl.settings.json").read_bytes()
    )
    regenerate_here(target, prompts, torn)
    assert torn.read_bytes() == whole.read_bytes()


def test_a_finished_file_needs_no_target(
    target: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "answers.jsonl"
    regenerate_here(target, prompts, output)
    before = output.read_bytes()
    monkeypatch.setattr(regenerate, "_transformers", lambda args: pytest.fail("loaded"))
    assert regenerate_here(target, prompts, output) == 0
    assert output.read_bytes() == before


def test_limit_grows(target: Path, prompts: Path, tmp_path: Path) -> None:
    output, whole = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    regenerate_here(target, prompts, output, "--limit", 2)
    assert len(read_conversations(output)) == 2
    regenerate_here(target, prompts, output)
    regenerate_here(target, prompts, whole)
    assert output.read_bytes() == whole.read_bytes()


def test_other_settings_are_refused(target: Path, prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    regenerate_here(target, prompts, output)
    before = output.read_bytes()
    with pytest.raises(UserError) as caught:
        regenerate_here(target, prompts, output, "--temperature", 0, "--seed", 3)
    assert str(caught.value) == (
        f"{output}: holds answers made with other settings (seed was 0 and is now 3; "
        "temperature was 0.7 and is now 0.0); choose another --output"
    )
    assert output.read_bytes() == before


def test_files_of_others_are_refused(target: Path, prompts: Path, tmp_path: Path) -> None:
    output = write_lines(tmp_path / "mine.jsonl", [{"precious": 1}])
    with pytest.raises(UserError) as caught:
        regenerate_here(target, prompts, output)
    assert str(caught.value) == (
        f"{output}: exists and was not made by this command; choose another --output"
    )
    assert json.loads(output.read_text()) == {"precious": 1}


def test_one_process_at_a_time_writes_a_file(target: Path, prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    with AnswersFile.opened(output, {}, []), pytest.raises(UserError) as caught:
        regenerate_here(target, prompts, output)
    assert str(caught.value) == (
        f"{output}: another specforge-dstill regenerate writes it; wait for it, or choose "
        "another --output"
    )
    assert regenerate_here(target, prompts, output) == 0


def test_ranks_of_torchrun_are_refused(
    target: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="start it once, without torchrun"):
        regenerate_here(target, prompts, tmp_path / "answers.jsonl")


def test_answers_of_other_questions_are_refused(
    target: Path, prompts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "answers.jsonl"
    regenerate_here(target, prompts, output)
    write_lines(prompts, [{"turns": ["w40"]}])
    with pytest.raises(UserError, match="'prompts-000001' belongs to another question than the"):
        regenerate_here(target, prompts, output)
    for system in ({"system": "w3"}, {}):
        write_lines(prompts, [{"turns": ["w9", "w8 w7"], "id": "two", **system}])
        with pytest.raises(UserError, match="'two' belongs to another system text than the"):
            regenerate_here(target, prompts, output)


def test_prompts_that_fill_the_window_are_left_out(
    target: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(prompts, [{"turns": ["w1 " * 300]}, {"turns": ["w1"]}])
    output = tmp_path / "answers.jsonl"
    assert regenerate_here(target, prompts, output) == 0
    said = capsys.readouterr()
    assert f"{output}: 1 of 2 conversations" in said.out
    assert "no answer to 'prompts-000001': turn 1 fills the target's window" in said.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--temperature", -1], "--temperature must be 0 or more, not -1"),
        (["--temperature", "nan"], "--temperature must be 0 or more, not nan"),
        (["--top-p", 0], "--top-p must be over 0 and at most 1, not 0"),
        (["--backend", "openai"], "--backend openai needs --base-url"),
        (["--target", "/no/such/target"], "/no/such/target: no such folder (paths count from "),
    ],
)
def test_bad_options(
    target: Path, prompts: Path, tmp_path: Path, more: list[object], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        regenerate_here(target, prompts, tmp_path / "out.jsonl", *more)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written(target: Path, prompts: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written: .*what was finished is kept"):
        regenerate_here(target, prompts, tmp_path / "file" / "answers.jsonl")


def test_a_long_torn_line_is_cut(prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    AnswersFile(output, {}, [])
    good = json.dumps({"id": "x", "messages": [{"role": "assistant", "content": "a"}]}) + "\n"
    output.write_text(good + "{" + "y" * 200_000)
    assert AnswersFile(output, {}, []).done == {"x"}
    assert output.read_text() == good
    output.write_text("{" + "y" * 200_000)
    assert AnswersFile(output, {}, []).done == frozenset()
    assert output.read_text() == ""


KILLED = """
import sys, time
from specforge_dstill.data import answer_transformers, regenerate
from specforge_dstill.cli import main
real = answer_transformers.generate_batch
def slow(*args):
    time.sleep(0.3)
    return real(*args)
answer_transformers.generate_batch = slow
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_kill_and_go_on(target: Path, prompts: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    regenerate_here(target, prompts, whole)
    words = ["regenerate", "--target", target, "--prompts", prompts, "--output", killed,
             "--max-new-tokens", 6, "--batch-size", 2]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not (killed.exists() and killed.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < len(read_conversations(killed)) < 6
    regenerate_here(target, prompts, killed)
    assert killed.read_bytes() == whole.read_bytes()
