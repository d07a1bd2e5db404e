"""`estimate`: the paper's arithmetic, a run file's, what is measured, and what does not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from specforge_dstill.cli import main
from specforge_dstill.verbs.estimate import EXAMPLE
from specforge_dstill.verbs.estimate_report import hours_text
from tests import tiny
from tests.verbs.conftest import RunVerb

PAPER = (
    *("--samples", "1000000", "--tokens-per-sample", "4096", "--layers", "5", "--hidden", "2880"),
    *("--dtype", "bf16", "--block-size", "16", "--top-k", "16", "--anchors", "512"),
)
Said = Callable[..., str]


@pytest.fixture
def said(run_verb: RunVerb) -> Said:
    """Runs `estimate` in a folder of its own; gives what it printed, or its error line."""
    return partial(run_verb, "estimate")


class Inputs(NamedTuple):
    """A run file in the current folder, and its conversations."""

    document: dict[str, Any]
    answers: Path


@pytest.fixture
def inputs(tiny_inputs: Path, tmp_path: Path) -> Inputs:
    document = {
        "model": {
            "target_model_path": str(tiny_inputs / "target"),
            "draft_model_config": str(tiny_inputs / "draft.json"),
        },
        "data": {"hidden_states_path": "cache", "max_length": 48},
        "training": {"batch_size": 2, "accumulation_steps": 2, "num_epochs": 3},
        "dstill": {
            "steps": 3,
            "trajectories": "store",
            "collect": {"top_k": 8, "anchors_per_sample": 6, "shard_size": 4},
        },
    }
    (tmp_path / "dstill.yaml").write_text(yaml.safe_dump(document))
    answers = tmp_path / "answers.jsonl"
    rows = [
        {
            "conversations": [
                {"role": "user", "content": "w1 w2 w3"},
                {"role": "assistant", "content": " ".join(["w4 w5"] * (1 + i))},
            ]
        }
        for i in range(9)
    ]
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Inputs(document, answers)


def test_a_dspark_drafters_cache_has_the_targets_last_states_too(
    said: Said, inputs: Inputs, tmp_path: Path
) -> None:
    config = tmp_path / "draft.json"
    config.write_text(json.dumps(tiny.draft_config(head="vanilla")))
    words = ("--json", f"--conversations={inputs.answers}")
    plain = json.loads(said(*words))
    found = json.loads(said(*words, f"model.draft_model_config={config}"))
    more = found["cache"]["bytes_per_token"] - plain["cache"]["bytes_per_token"]
    assert more == 4 * tiny.HIDDEN
    assert found["settings"]["block_size"] == plain["settings"]["block_size"] + 1
    text = said(f"--conversations={inputs.answers}", f"model.draft_model_config={config}")
    assert "(last states)" in text
    assert "fp8" not in text, "which a DSpark cache cannot be"


def test_the_papers_settings_without_run_file_or_target(said: Said) -> None:
    found = json.loads(said("--json", *PAPER))
    assert found["cache"]["bytes_per_token"] == 28_816
    assert found["cache"]["bytes"] == pytest.approx(118_030_336_000_000, rel=1e-4)
    assert found["trajectories"]["bytes_per_block"] == 1_524
    assert found["trajectories"]["blocks"] == 512_000_000
    assert found["trajectories"]["bytes"] == pytest.approx(780_288_000_000, rel=1e-3)
    assert found["disk"] == []


def test_the_helps_example_is_what_it_prints(said: Said) -> None:
    shown = [line.strip() for line in said(*PAPER).splitlines()]
    lines = [line.strip() for line in EXAMPLE.splitlines() if line.startswith("    ")]
    numbers = [line for line in lines if not line.startswith("--dtype bf16")]
    assert len(numbers) == 8
    for line in numbers:
        assert line in shown


def test_hours_of_given_throughputs(said: Said) -> None:
    words = ("--capture-tokens-per-second", "20000", "--collect-blocks-per-second", "3000")
    found = json.loads(said("--json", *PAPER, *words, "--ranks", "8"))
    hours = {time["stage"]: time["hours"] for time in found["hours"]}
    assert hours == pytest.approx(
        {"capture": 4.096e9 / 160_000 / 3600, "collect": 5.12e8 / 24_000 / 3600}
    )
    text = said(*PAPER, *words, "--ranks", "8")
    assert "7.11 hours = 4,096,000,000 tokens / (20,000 a second x 8 ranks)" in text


def test_conversations_are_counted_as_capture_keeps_them(said: Said, inputs: Inputs) -> None:
    found = json.loads(said("--json", "--conversations", inputs.answers))
    counts = found["counts"]
    # Answers of 2, 4, .. 18 words and a stop token, all scored; a word pair is two tokens.
    answers = [2 * (1 + i) + 1 for i in range(9)]
    assert counts["samples"] == 9
    assert counts["scored"] == sum(answers)
    assert counts["anchors"] == sum(size - 1 for size in answers)
    assert counts["blocks"] == sum(min(6, size - 1) for size in answers)
    assert found["settings"]["layers"] == len(tiny.LAYERS)
    assert found["settings"]["dtype"] == "float32"
    assert found["cache"]["bytes_per_token"] == 2 * 32 * 4 + 16
    assert found["trajectories"]["bytes_per_block"] == 4 + 8 * 4 + 8 + 7 * 8 * 6
    assert found["trajectories"]["shards"] == 3
    scaled = json.loads(said("--json", "--conversations", inputs.answers, "--tokenize", "3"))
    assert scaled["counts"]["samples"] == 9
    assert "scaled up" in scaled["counts"]["source"]
    few = json.loads(said("--json", "--conversations", inputs.answers, "--limit", "2"))
    assert few["counts"]["samples"] == 2


def test_options_come_before_the_run_file(said: Said, inputs: Inputs) -> None:
    words = ("--layers", "3", "--dtype", "fp8", "--top-k", "2", "--anchors", "2")
    found = json.loads(
        said("--json", "--conversations", inputs.answers, *words, "--record", "full")
    )
    assert found["cache"]["bytes_per_token"] == 3 * 32 + 3 * 4 + 16
    assert found["trajectories"]["bytes_per_block"] == 4 + 8 * 4 + 8 + 3 * 7 * 2 * 6
    assert found["counts"]["blocks"] == 9 * 2


def test_prompts_that_are_not_answered_yet(said: Said, inputs: Inputs, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"turns": ["w1 w2"]}\n{"turns": ["w1", "w2 w3"]}\n')
    found = json.loads(said("--json", "--prompts", prompts, "--answer-tokens", "5"))["counts"]
    # <|im_start|>user\n … <|im_end|>\n<|im_start|>assistant\n: eight tokens around the words.
    assert found["tokens"] == (8 + 2 + 5) + (8 + 1 + 5) + (8 + 2 + 5)
    assert found["anchors"] == 3 * 4
    assert "--answer-tokens" in said("--prompts", prompts, status=2)


def test_what_is_measured_is_said(said: Said, inputs: Inputs, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    words = ("--conversations", inputs.answers, "--measure")
    found = json.loads(said("--json", *words))
    assert [time["stage"] for time in found["hours"]] == ["capture", "collect"]
    assert all(time["rate"] > 0 and time["hours"] > 0 for time in found["hours"])
    assert found["hours"][0]["source"].startswith("measured: ")
    assert "9 conversations" in found["hours"][0]["source"]
    assert sorted(tmp_path.iterdir()) == before  # nothing is left behind


def test_training_hours_need_the_run_file(said: Said, inputs: Inputs) -> None:
    words = ("--teacher-seconds-per-step", "2")
    found = json.loads(said("--json", "--conversations", inputs.answers, *words, "--ranks", "2"))
    # 9 samples / (2 * 2 * 2 ranks) a step: 2 steps, 3 epochs.
    assert found["hours"] == [
        {
            "stage": "teacher",
            "samples": 9,
            "batch": 8,
            "epochs": 3,
            "seconds_per_step": 2.0,
            "hours": pytest.approx(12 / 3600),
        }
    ]
    Path("dstill.yaml").unlink()
    assert "name it with --config" in said(*PAPER, *words, status=2)


def test_what_does_not_fit_is_a_warning(
    said: Said,
    inputs: Inputs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "DOES NOT FIT" not in said("--conversations", inputs.answers)
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    capsys.readouterr()
    assert main(["estimate", "--conversations", str(inputs.answers)]) == 0
    shown = capsys.readouterr()
    assert "cache and store: DOES NOT FIT" in shown.out
    assert "warning: cache and store will need" in shown.err


def test_no_store_when_trajectories_are_made_online(said: Said, inputs: Inputs) -> None:
    words = ("--conversations", inputs.answers, "dstill.trajectories=online")
    assert json.loads(said("--json", *words))["trajectories"] is None
    text = said(*words)
    assert "trajectories: none" in text
    assert "store" not in text.split("disk")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--layers is not known: give it, or name a run file"),
        ([*PAPER[4:]], "in one way: --conversations FILE, --prompts FILE, or --samples"),
        ([*PAPER[4:], "--samples", "3"], "both of them"),
        (["--samples", "3", "--tokens-per-sample", "9"], "--layers is not known"),
        ([*PAPER, "--conversations", "a.jsonl"], "in one way"),
        ([*PAPER, "--measure"], "--measure captures some conversations"),
        ([*PAPER[4:], "--conversations", "a.jsonl"], "--conversations needs the target"),
        ([*PAPER, "--capture-tokens-per-second", "0"], "not a number above 0"),
        ([*PAPER, "--block-size", "1"], "block_size must be at least 2"),
        ([*PAPER, "--steps", "16"], "--steps: steps must lie in 1..15 for block_size 16"),
        ([*PAPER, "--config", "none.yaml"], "no run file none.yaml"),
    ],
)
def test_mistakes_are_one_line(said: Said, words: list[str], message: str) -> None:
    lines = [line for line in said(*words, status=2).splitlines() if "error" in line]
    assert len(lines) == 1
    assert message in lines[0]


def test_no_more_ids_than_the_vocabulary_has(said: Said, inputs: Inputs) -> None:
    words = ("--samples", "3", "--tokens-per-sample", "9", "--top-k")
    assert f"besides the mask; make it {tiny.VOCAB - 1} or less" in said(
        *words, str(tiny.VOCAB), status=2
    )
    assert said(*words, str(tiny.VOCAB - 1))


def test_counts_by_hand_are_cut_as_training_cuts(said: Said, inputs: Inputs) -> None:
    words = ("--samples", "3", "--tokens-per-sample")
    assert "given, cut to data.max_length 48" in said(*words, "49")
    cut, whole = (json.loads(said("--json", *words, length)) for length in ("49", "48"))
    assert cut["cache"] == whole["cache"]
    assert cut["trajectories"] == whole["trajectories"]


def test_hours_in_words() -> None:
    assert [hours_text(hours) for hours in (0.005, 0.5, 3.14, 47, 100)] == [
        *("18 seconds", "30 minutes", "3.14 hours", "47 hours", "100 hours (4.2 days)")
    ]
