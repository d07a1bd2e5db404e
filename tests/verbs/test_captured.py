"""`evaluate --replay --captured`: as with prompts, from a capture of the target's answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specforge_dstill import cli
from specforge_dstill.data import targets
from specforge_dstill.data.captured_answers import CapturedAnswers, scored_spans
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.report import Report, report_from_json
from tests.tiny import write_json
from tests.trained import Case

NEW_TOKENS = 24


def run(*words: object) -> int:
    return cli.main([*map(str, words)])


def captured(case: Case, folder: Path, name: str, *, temperature: float = 0) -> Path:
    """The target's answers to a file of prompts, regenerated and captured as a user does it."""
    answers, cache = folder / f"{name}-answers.jsonl", folder / name
    regenerate = ("--target", case.folder / "target", "--prompts", case.folder / f"{name}.jsonl")
    made = ("--temperature", temperature, "--max-new-tokens", NEW_TOKENS, "--output", answers)
    assert run("regenerate", *regenerate, *made) == 0
    source = ("--config", case.run_file, "--conversations", answers, "--output", cache)
    assert run("capture", *source) == 0
    return cache


def evaluate(case: Case, output: Path, *words: object) -> int:
    drafter = f"teacher={case.folder / 'trained'}:1,4"
    common = ("--replay", "--config", case.run_file, "--drafter", drafter, "--output", output)
    return run("evaluate", *common, *words)


def report(output: Path) -> Report:
    return report_from_json((output / "results.json").read_text())


def rounds(found: Report) -> list[list[tuple[int, ...]]]:
    """Answer by answer; one of a single token has none, and capture leaves it out."""
    return [
        [walk.accepted for walks in score.walks.values() for walk in walks if walk.accepted]
        for score in found.scores
    ]


@pytest.fixture(scope="module")
def caches(case: Case, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("captured")
    return {name: captured(case, folder, name) for name in ("one", "two")}


def test_it_is_the_replay_of_prompts(
    case: Case, caches: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [f"--prompts={name}={case.folder / name}.jsonl" for name in caches]
    assert evaluate(case, tmp_path / "asked", *prompts, "--max-new-tokens", NEW_TOKENS) == 0

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the target is loaded")

    monkeypatch.setattr(targets, "load_model", refuse)
    sets = [f"--captured={name}={folder}" for name, folder in caches.items()]
    assert evaluate(case, tmp_path / "captured", *sets) == 0
    asked, found = report(tmp_path / "asked"), report(tmp_path / "captured")
    assert rounds(found) == rounds(asked)
    assert sum(map(len, rounds(found)[0])) > 100
    for name in ("max_new_tokens", "chat_template", "template_kwargs", "checkpoints", "target"):
        assert found.details[name] == asked.details[name], name
    told = found.details["prompts"]["two"]
    assert (told["count"], told["source"]) == (6, str(caches["two"]))


def test_a_limit_counts_conversations(case: Case, caches: dict[str, Path], tmp_path: Path) -> None:
    assert evaluate(case, tmp_path, f"--captured=two={caches['two']}", "--limit", 2) == 0
    names = [walk.name for walk in report(tmp_path).scores[0].walks["two"]]
    assert names == ["two-0", "two-0/2", "two-1", "two-1/2"]


def test_what_is_refused(
    case: Case, caches: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = captured(case, tmp_path, "one", temperature=1)
    one = f"--captured=one={caches['one']}"
    refusals = {
        (f"--captured=one={drawn}",): "were drawn at temperature 1, and replay walks greedy ones",
        (f"--captured=one={tmp_path / 'none'}",): "no such folder; make it with",
        (one, "--max-new-tokens", 8): "--max-new-tokens is for answers that evaluate makes",
        (one, f"--prompts=one={case.folder / 'one.jsonl'}"): "--prompts is for answers that",
        (one, one): "--captured: the name 'one' is given twice",
        (): "say what to answer: --prompts NAME[=SOURCE]",
    }
    for words, message in refusals.items():
        capsys.readouterr()
        assert evaluate(case, tmp_path / "results", *words) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_a_cache_of_other_layers_is_refused(
    case: Case, caches: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((case.folder / "draft.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [0, 3]
    other = write_json(tmp_path / "other.json", config)
    word = f"model.draft_model_config={other}"
    assert evaluate(case, tmp_path / "results", f"--captured=one={caches['one']}", word) == 2
    assert "draft config wants layers [0,3]" in capsys.readouterr().err


def test_bytes_that_changed_are_refused_though_the_size_is_the_same(
    case: Case, caches: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(caches["one"], other)
    file = sorted(other.rglob("*.ckpt"))[2]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert evaluate(case, tmp_path / "results", f"--captured=one={other}") == 2
    assert f"{file} does not match its checksum" in capsys.readouterr().err


def test_an_unfinished_capture_is_told(caches: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(caches["one"], other)
    (other / "manifest.json").unlink()
    with pytest.raises(UserError, match="holds no finished capture; run its capture command"):
        CapturedAnswers.of(other)


def test_answers_made_in_different_ways_are_not_mixed(
    case: Case, caches: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(caches["two"], other)
    manifest = CapturedAnswers.of(other).manifest
    longer = {**manifest.generation, "max_new_tokens": 2 * NEW_TOKENS}
    replace(manifest, generation=longer).write(other)
    words = (f"--captured=one={caches['one']}", f"--captured=two={other}")
    assert evaluate(case, tmp_path / "results", *words) == 2
    told = f"one and two were made in different ways (max_new_tokens {NEW_TOKENS} and "
    assert told in capsys.readouterr().err
    unknown = replace(manifest, generation={})
    unknown.write(other)
    with pytest.warns(UserWarning, match="it is not known how its answers were made"):
        CapturedAnswers.of(other)


def test_spans() -> None:
    assert scored_spans(torch.tensor([[0, 1, 1, 0, 0, 1]])) == [(1, 3), (5, 6)]
    assert scored_spans(torch.zeros(3)) == []
    assert scored_spans(torch.ones(0)) == []
