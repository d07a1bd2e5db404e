"""Templates that print the day: answers, capture and evaluation have one day, the answers'."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from specforge_dstill.data.answer_transformers import TransformersAnswers
from specforge_dstill.data.answers_file import settings_path
from specforge_dstill.data.chat import prompt_tokens
from specforge_dstill.data.conversations import Message
from specforge_dstill.data.manifest import CacheManifest
from specforge_dstill.data.template_day import prints_day, stopped_clock
from specforge_dstill.verbs import evaluation_plan

from .caches import make_manifest
from .conftest import make_tokenizer, write_lines
from .test_regenerate import regenerate_here

TALK = [Message("user", "w1")]


@pytest.fixture
def dated(tmp_path: Path, target: Path) -> Path:
    """The target with a template whose first word is the day's: w2 on the second of a month."""
    folder = shutil.copytree(target, tmp_path / "dated")
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ strftime_now('w%-d') }}\n" + str(tokenizer.chat_template)
    tokenizer.save_pretrained(folder)
    return folder


def first_word(tokenizer: Any, variables: dict[str, Any]) -> str:
    ids = prompt_tokens(tokenizer, TALK, variables, name="x")
    return str(tokenizer.convert_ids_to_tokens(ids[0]))


def test_the_clock_stands_still_for_a_template_that_asks_it() -> None:
    tokenizer = make_tokenizer()
    assert not prints_day(tokenizer)
    plain = prompt_tokens(tokenizer, TALK, {}, name="x")
    assert prompt_tokens(tokenizer, TALK, stopped_clock("2000-01-02"), name="x") == plain
    tokenizer.chat_template = "{{ strftime_now('w%-d') }}\n" + str(tokenizer.chat_template)
    assert prints_day(tokenizer)
    assert first_word(tokenizer, stopped_clock("2000-01-02")) == "w2"
    assert stopped_clock("") == {}


def test_answers_are_gone_on_with_under_their_day(
    dated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = write_lines(tmp_path / "prompts.jsonl", [{"turns": [f"w{i}"]} for i in range(3)])
    output = tmp_path / "answers.jsonl"
    asked = []
    tokens = TransformersAnswers._tokens

    def watched(self: TransformersAnswers, *which: Any) -> list[int]:
        asked.append(first_word(self.tokenizer, dict(self.template_kwargs)))
        return tokens(self, *which)

    monkeypatch.setattr(TransformersAnswers, "_tokens", watched)
    regenerate_here(dated, prompts, output, "--limit", 1)
    path = settings_path(output)
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"date": "2000-01-02"}))
    asked.clear()
    regenerate_here(dated, prompts, output)
    assert set(asked) == {"w2"}
    assert json.loads(path.read_text())["date"] == "2000-01-02"


def test_a_manifest_without_a_day_is_as_it_was(tmp_path: Path) -> None:
    """So that captures from before go on."""
    assert "template_day" not in make_manifest().identity()
    make_manifest().write(tmp_path)
    assert "template_day" not in (tmp_path / "manifest.json").read_text()
    assert CacheManifest.read(tmp_path) == make_manifest()
    assert make_manifest(template_day="2000-01-02").identity()["template_day"] == "2000-01-02"


def test_evaluation_has_the_caches_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are kept by their prompts' tokens: on another day all would be made anew."""
    nothing: Any = None
    cache = make_manifest(template_day="2000-01-02")
    monkeypatch.setattr(evaluation_plan, "feature_cache", lambda run: cache)
    args = Namespace(template_kwargs={"enable_thinking": False})
    plan = evaluation_plan.EvaluationPlan(args, nothing, nothing, 0, ())
    variables = plan.template_variables
    assert variables.pop("strftime_now")("%F") == "2000-01-02"
    assert variables == plan.template_kwargs == {"enable_thinking": False}
