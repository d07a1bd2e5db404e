"""S and its table by hand, and what is measured side by side."""

from __future__ import annotations

import json
from math import isnan
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specforge_dstill.evaluation import stopwatch
from specforge_dstill.evaluation.decoding import Decoded
from specforge_dstill.evaluation.interleaved import (
    WARM_UP_RUNS,
    WARM_UP_TOKENS,
    Interleaved,
    measured_from_json,
)
from specforge_dstill.evaluation.peak_memory import PeakMemory
from specforge_dstill.evaluation.speed import (
    Speed,
    Timing,
    mean_over_data_sets,
    speed_from_json,
    speed_table,
    speedups,
)
from specforge_dstill.evaluation.stopwatch import Seconds, Stopwatch

PLAIN = Speed(
    {
        "easy": [Timing("a", 10, Seconds(1, 0, 3)), Timing("b", 30, Seconds(1, 0, 7))],
        "hard": [Timing("c", 10, Seconds(0.5, 0, 0.5))],
    },
    1_000_000,
)
DRAFTED = Speed(
    {
        "easy": [
            Timing("a", 10, Seconds(0.5, 0.5, 1, 0), same=True),
            Timing("b", 10, Seconds(0.5, 0, 0, 0), same=False),
        ],
        "hard": [Timing("c", 20, Seconds(1, 1, 2, 1), same=True)],
    },
    2_000_000,
)


def test_the_speed_up_by_hand() -> None:
    # Easy: 12 s for 40 tokens against 2.5 s for 20. Hard: 1 s for 10 against 5 s for 20.
    gains = speedups(PLAIN, DRAFTED)
    assert gains == {"easy": pytest.approx(0.3 / 0.125), "hard": pytest.approx(0.1 / 0.25)}
    assert mean_over_data_sets(gains) == pytest.approx((2.4 + 0.4) / 2)
    assert speedups(PLAIN, PLAIN) == {"easy": 1, "hard": 1}


def test_shares_and_equality() -> None:
    assert DRAFTED.shares() == {
        "prefill": 2 / 7.5,
        "draft": 1.5 / 7.5,
        "verify": 3 / 7.5,
        "other": 1 / 7.5,
    }
    assert DRAFTED.same == (2, 3)
    assert PLAIN.same is None


def test_the_table() -> None:
    header, _, plain, drafted = speed_table(PLAIN, [("student", 1, DRAFTED)]).splitlines()
    assert header.split()[:8] == ["Drafter", "Passes", "S", "easy", "S", "hard", "S", "ms/token"]
    assert plain.split()[:6] == ["plain", "–", "1.00", "1.00", "1.00", "200.00"]
    assert drafted.split() == [
        *("student", "1", "2.40", "0.40", "1.40", "187.50"),
        *("26.7", "20.0", "40.0", "13.3", "2/3", "2.00", "MB"),
    ]


def test_json_gives_the_speed_back() -> None:
    for speed in (PLAIN, DRAFTED):
        assert speed_from_json(json.loads(json.dumps(speed.to_json()))) == speed


def test_nothing_measured() -> None:
    empty = Speed({"none": []}, 0)
    assert isnan(empty.per_token("none"))
    assert all(isnan(share) for share in empty.shares().values())
    row = speed_table(empty, []).splitlines()[2].split()
    assert row == ["plain", *["–"] * 9, "0", "B"], "no nan in a table"


def test_every_way_answers_every_prompt_with_the_same_seed() -> None:
    calls: list[tuple[str, int, int, int]] = []

    def way(name: str) -> Any:
        def decode(prompt: Tensor, room: int, generator: torch.Generator) -> Decoded:
            calls.append((name, len(prompt), room, generator.initial_seed()))
            return Decoded((1, 2), (), Seconds(verify=0.5))

        return decode

    measuring = Interleaved({name: way(name) for name in "abc"}, torch.device("cpu"))
    prompts = [torch.zeros(3), torch.zeros(4)]
    measuring.warm_up([(prompts[0], 500), (prompts[1], 20)])
    assert WARM_UP_RUNS == 4
    assert calls[:4] == [("a", *run) for run in ((3, 128, 0), (4, 20, 1), (3, 128, 2), (4, 20, 3))]
    assert len(calls) == 3 * WARM_UP_RUNS
    assert max(room for _, _, room, _ in calls) == WARM_UP_TOKENS
    calls.clear()
    for seed in range(3):
        found = measuring.measure(prompts[0], max_new_tokens=9, seed=seed)
        assert list(found) == ["a", "b", "c"]
    # Each begins once, and none but "c" always follows "b".
    assert [(name, seed) for name, _, room, seed in calls if room == 9] == [
        *(("a", 0), ("b", 0), ("c", 0)),
        *(("b", 1), ("c", 1), ("a", 1)),
        *(("c", 2), ("a", 2), ("b", 2)),
    ]
    again = measured_from_json(json.loads(json.dumps(found["a"].to_json())))
    assert again == found["a"]


def test_the_peak_is_that_since_the_last_reset() -> None:
    peak = PeakMemory(torch.device("cpu"))
    peak.reset()
    before = peak.bytes()
    held = torch.ones(25_000_000)  # 100 MB
    del held
    assert 90e6 < peak.bytes() - before < 200e6
    peak.reset()
    assert peak.bytes() < before + 50e6


def test_laps_add_up_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.5, 102.5, 106.5, 107.5])
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=clock.__next__))
    watch = Stopwatch(torch.device("cpu"))
    for phase in ("prefill", "draft", "verify", "draft"):
        watch.lap(phase)
    spent = watch.seconds()
    assert spent == Seconds(prefill=0.5, draft=2 + 1, verify=4, other=0)
    assert spent.total == 7.5
