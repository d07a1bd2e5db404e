"""The paper's six benchmarks by name: where each lies on the Hub, and how a row is asked.

The questions are worded as DFlash's and DeepSpec's evaluations word them. The paper does not say
which rows it took: here they are the first ones. Nor does it say which MBPP and which SWE-bench:
the configuration ``sanitized`` and SWE-bench_Lite are our choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from specforge_dstill.data.conversations import Prompt
from specforge_dstill.data.hub import load_hub
from specforge_dstill.errors import UserError

REASON = "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
CODE = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{}\n```"
)
ISSUE = "Problem Statement:\n{}\n\nPlease fix the issue described above."


@dataclass(frozen=True)
class Benchmark:
    """A data set of questions.

    Attributes:
        dataset, config, split: its name on the Hub.
        column: the text of a row, or a list of the user's turns.
        count: how many prompts the paper evaluates.
        wording: the question around each turn.
    """

    dataset: str
    split: str
    column: str
    count: int
    wording: str = "{}"
    config: str | None = None

    def prompts(self, name: str, rows: Iterable[Mapping[str, Any]], count: int) -> list[Prompt]:
        """The first ``count`` rows as prompts. Raises: ``UserError`` for a row without the text."""
        prompts = []
        for index, row in enumerate(islice(rows, count)):
            found = row.get(self.column)
            turns = [found] if isinstance(found, str) else found
            if not turns or not all(isinstance(turn, str) for turn in turns):
                raise UserError(
                    f"{name}: row {index} of {self.dataset} has no text in {self.column!r}; the "
                    "data set has changed: give a file of prompts instead"
                )
            worded = tuple(self.wording.format(turn) for turn in turns)
            prompts.append(Prompt(id=f"{name}-{index:06d}", turns=worded))
        return prompts


BENCHMARKS = {
    "gsm8k": Benchmark("openai/gsm8k", "test", "question", 128, REASON, config="main"),
    "math500": Benchmark("HuggingFaceH4/MATH-500", "test", "problem", 128, REASON),
    "humaneval": Benchmark("openai/openai_humaneval", "test", "prompt", 164, CODE),
    "mbpp": Benchmark("google-research-datasets/mbpp", "test", "prompt", 128, config="sanitized"),
    "mt-bench": Benchmark("HuggingFaceH4/mt_bench_prompts", "train", "prompt", 80),
    "swe-bench": Benchmark("princeton-nlp/SWE-bench_Lite", "test", "problem_statement", 164, ISSUE),
}


def benchmark_prompts(name: str, *, limit: int | None = None) -> list[Prompt]:
    """A benchmark's prompts from the Hub: the paper's number of them, or ``limit``.

    Raises: ``UserError`` for an unknown name, and when the Hub cannot be read.
    """
    benchmark = BENCHMARKS.get(name)
    if benchmark is None:
        raise UserError(
            f"there is no benchmark {name!r}; known: {', '.join(BENCHMARKS)}; or NAME=FILE"
        )
    rows = load_hub(benchmark.dataset, benchmark.split, config=benchmark.config)
    return benchmark.prompts(name, rows, benchmark.count if limit is None else limit)
