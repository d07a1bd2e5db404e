"""What stands above the tables, and what a reader is warned of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specforge_dstill.evaluation.replay import Walk
from specforge_dstill.evaluation.report import Report, Score
from specforge_dstill.evaluation.speed import Speed, Timing
from specforge_dstill.evaluation.stopwatch import Seconds
from specforge_dstill.reporting.facts import facts, template_warnings, warnings
from specforge_dstill.reporting.settings import Method, settings_of
from tests.reporting.examples import decoded, example


def warned(*reports: Report) -> list[str]:
    names = [f"run{number}" for number in range(len(reports))]
    return [
        text for setting in settings_of(enumerate(reports)) for text in warnings(setting, names)
    ]


def test_facts_are_told_and_unknown_ones_left_out() -> None:
    (setting,) = settings_of(enumerate([example(date="2026-11-30"), example(date="2026-12-01")]))
    told = dict(facts(setting, ["a", "b"]).values)
    assert told["Target"] == "tiny"
    assert told["Temperature"] == "0 (greedy)"
    assert told["Chat template"] == "enable_thinking = false"
    assert told["Prompts"] == "easy: 3 prompts (easy.jsonl), hard: 2 prompts"
    assert told["Versions"] == "torch 2.13.0"
    assert told["When"] == "2026-11-30, 2026-12-01"
    assert told["Results"] == "a, b"
    assert "Computed in" not in told
    assert "Least confidence" not in told
    details = {
        "rule": "compare",
        "min_confidence": 0.4,
        "dtype": "float32",
        "device": "cuda",
        "device_name": "H",
        "attn_implementation": "eager",
        "threads": 2,
        "prompts": {"easy": {"source": "easy.jsonl", "hash": "abc"}, "hard": {"source": "x"}},
    }
    (setting,) = settings_of([(0, decoded(0.6, **details))])
    told = dict(facts(setting, ["a"]).values)
    assert told["Temperature"] == "0.6, top_p 0.9, rule compare"
    assert told["Computed in"] == "float32, cuda, H, attention: eager, threads: 2"
    assert told["Least confidence"] == "0.4"
    assert told["Prompts"] == "easy: 3 prompts (easy.jsonl, hash abc), hard: 2 prompts (x)"


def test_turns_are_counted_beside_prompts() -> None:
    walks = {"talk": [Walk("a", (1,)), Walk("a/2", (2,))]}
    (setting,) = settings_of([(0, Report(4, (Score("student", 1, walks),)))])
    assert dict(facts(setting, ["a"]).values)["Prompts"] == "talk: 1 prompt, 2 turns"


def test_another_template_than_the_caches_is_warned_of() -> None:
    def of(**details: Any) -> list[str]:
        return list(template_warnings(details))

    cache = {"template_kwargs": {"enable_thinking": False}, "chat_template": "abc"}
    assert of() == of(template_kwargs={"enable_thinking": True}) == []
    same = {"template_kwargs": {"enable_thinking": False}, "chat_template": "abc"}
    assert of(cache=cache, **same) == []
    (reasoning,) = of(cache=cache, **{**same, "template_kwargs": {"enable_thinking": True}})
    assert "enable_thinking = true; in the feature cache: enable_thinking = false" in reasoning
    (template,) = of(cache=cache, **{**same, "chat_template": "def"})
    assert "(def) is not the feature cache's (abc)" in template


def test_the_same_checkpoint_twice_is_no_second_seed() -> None:
    def run(weights: str) -> Report:
        return example(checkpoints={"student": {"weights": weights}})

    assert warned(run("a"), run("b")) == []
    (text,) = warned(run("a"), run("b"), run("a"))
    assert text.startswith("student is the same checkpoint in run0 and run2")


def test_means_of_fewer_runs_are_told() -> None:
    whole = example()
    part = replace(whole, scores=whole.scores[1:])
    first = whole.scores[0]
    (text,) = warned(whole, part, whole)
    assert text.startswith(f"{Method(first.drafter, first.steps)}: measured in 2 of 3 runs.")


def test_other_warnings_name_the_setting() -> None:
    left_out = example(left_out={"easy": ["easy-7"], "hard": []})
    versions = example(versions={"torch": "1"})
    timing = Timing("easy-0", 1, Seconds(), same=False)
    one = Score("student", 1, {"easy": [Walk("easy-0", (1,))]}, Speed({"easy": [timing]}, 0))
    other = Report(4, (one,), plain=Speed({"easy": [timing]}, 0))
    assert warned(left_out, versions, other) == [
        "Setting A: easy: 1 turns left out in run0 (window full).",
        "Setting A: the runs were measured with different versions of the libraries.",
        "Setting B: run2: 1 of 1 greedy answers with student (1) are not the target's own.",
    ]
