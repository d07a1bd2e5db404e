"""The six benchmarks: their rows as prompts, worded as DFlash's evaluation words them."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

import pytest

from specforge_dstill.data import benchmarks
from specforge_dstill.data.benchmarks import BENCHMARKS, benchmark_prompts
from specforge_dstill.errors import UserError
from specforge_dstill.verbs.evaluate_options import data_set

ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "How much is 2 + 2?", "answer": "4"},
    "math500": {"problem": "Find {x}.", "level": 1},
    "humaneval": {"prompt": "def one():\n    pass\n", "task_id": "HumanEval/0"},
    "mbpp": {"prompt": "Write a function.", "task_id": 2},
    "mt-bench": {"prompt": ["Write a poem.", "Make it shorter."], "category": "writing"},
    "swe-bench": {"problem_statement": "It breaks.\r\n", "repo": "astropy/astropy"},
}
STEPS = "Please reason step by step, and put your final answer within \\boxed{}."
TESTS = "Write a solution to the following problem and make sure that it passes the tests:"
TURNS = {
    "gsm8k": (f"How much is 2 + 2?\n{STEPS}",),
    "math500": (f"Find {{x}}.\n{STEPS}",),
    "humaneval": (f"{TESTS}\n```python\ndef one():\n    pass\n\n```",),
    "mbpp": ("Write a function.",),
    "mt-bench": ("Write a poem.", "Make it shorter."),
    "swe-bench": ("Problem Statement:\nIt breaks.\r\n\n\nPlease fix the issue described above.",),
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A Hub with 200 equal rows in every data set; what was asked of it."""
    asked: list[tuple[Any, ...]] = []

    def load(dataset: str, split: str, *, config: str | None = None) -> list[dict[str, Any]]:
        asked.append((dataset, config, split))
        name = next(n for n, benchmark in BENCHMARKS.items() if benchmark.dataset == dataset)
        return [ROWS[name]] * 200

    monkeypatch.setattr(benchmarks, "load_hub", load)
    return asked


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_row_is_asked_as_elsewhere(name: str, hub: list[tuple[Any, ...]]) -> None:
    (prompt,) = benchmark_prompts(name, limit=1)
    assert prompt.turns == TURNS[name]
    assert prompt.id == f"{name}-000000"
    assert hub == [(BENCHMARKS[name].dataset, BENCHMARKS[name].config, BENCHMARKS[name].split)]


@pytest.mark.usefixtures("hub")
def test_counts_are_the_papers() -> None:
    counts = {name: len(benchmark_prompts(name)) for name in BENCHMARKS}
    assert counts == {
        "gsm8k": 128,
        "math500": 128,
        "humaneval": 164,
        "mbpp": 128,
        "mt-bench": 80,
        "swe-bench": 164,
    }


def test_evaluate_takes_a_bare_name(hub: list[tuple[Any, ...]]) -> None:
    chosen = data_set("mt-bench")
    assert [len(prompt.turns) for prompt in chosen.prompts(limit=3)] == [2, 2, 2]
    assert chosen.origin == "HuggingFaceH4/mt_bench_prompts"
    assert len(hub) == 1
    assert data_set("gsm8k=mine.jsonl").origin == "mine.jsonl"
    with pytest.raises(ArgumentTypeError, match="or one of gsm8k, math500"):
        data_set("gsm")


def test_an_unknown_name_and_a_changed_data_set(hub: list[tuple[Any, ...]]) -> None:
    with pytest.raises(UserError, match="no benchmark 'gsm8'; known: gsm8k"):
        benchmark_prompts("gsm8")
    with pytest.raises(UserError, match=r"row 0 of openai/gsm8k has no text in 'question'"):
        BENCHMARKS["gsm8k"].prompts("gsm8k", [{"q": "?"}], 1)
    assert hub == []
