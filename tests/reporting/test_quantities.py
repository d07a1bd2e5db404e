"""Observed numbers are the evaluation's own; resamples are paired; seeds are averaged."""

from __future__ import annotations

import numpy as np
import pytest

from specforge_dstill.evaluation.intervals import DRAWS, Interval
from specforge_dstill.evaluation.replay import Walk
from specforge_dstill.evaluation.report import Report, Score
from specforge_dstill.reporting.prompts import prompt_of
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.settings import Method, settings_of
from tests.reporting.examples import DETAILS, decoded, example

STUDENT, TEACHER = Method("student", 1), Method("teacher", 3)


def quantities(*reports: Report) -> Quantities:
    (setting,) = settings_of(enumerate(reports))
    return Quantities(setting)


def test_observed_numbers_are_the_evaluations_own() -> None:
    report, found = example(), quantities(example())
    for score in report.scores:
        method = Method(score.drafter, score.steps)
        for name, tau in score.tau.items():
            assert found.tau(method, name).estimate().value == pytest.approx(tau)
        assert found.average_tau(method).estimate().value == pytest.approx(score.average)
        shares = score.by_position(block_size=4)
        for position, share in enumerate(shares, start=1):
            by_set = [found.accepts(method, n)[position - 1].values[0, 0] for n in score.walks]
            assert sum(by_set) / 2 == pytest.approx(share)
        own, recovery = report.recovery(score), found.recovery(method)
        assert (own is None) == (recovery is None)
        if recovery is not None and own is not None:
            assert recovery.value == pytest.approx(100 * own)


def test_tau_is_resampled_by_prompt_not_by_round() -> None:
    values = quantities(example()).tau(STUDENT, "easy").values
    assert values.shape == (1, 1 + DRAWS)
    # Three prompts: (6 tokens, 2 rounds), (3, 1), (6, 3); a resample is three of them.
    prompts = [(6, 2), (3, 1), (6, 3)]
    possible = {
        round(sum(p[0] for p in drawn) / sum(p[1] for p in drawn), 9)
        for drawn in ((a, b, c) for a in prompts for b in prompts for c in prompts)
    }
    assert {round(value, 9) for value in values[0]} <= possible


def test_every_method_is_resampled_on_the_same_prompts() -> None:
    # Three passes are never below one pass here, prompt by prompt; so nor on any resample.
    found = quantities(example())
    apart = found.tau(TEACHER, "easy").values - found.tau(Method("teacher", 1), "easy").values
    assert apart.min() > 0
    assert quantities(example()).tau(TEACHER, "easy").values == pytest.approx(
        found.tau(TEACHER, "easy").values
    )


def test_seeds_are_averaged_and_have_an_interval_of_their_own() -> None:
    found = quantities(example(), example(more=1), example(more=1, seed=2))
    estimate = found.tau(STUDENT, "easy").estimate()
    one, two = 15 / 6, 16 / 6
    assert estimate.runs == 3
    assert estimate.value == pytest.approx((one + 2 * two) / 3)
    assert estimate.over_runs is not None
    half = 4.303 * np.std([one, two, two], ddof=1) / np.sqrt(3)
    assert estimate.over_runs.high == pytest.approx(estimate.value + half)
    assert found.tau(Method("dflash", 1), "easy").estimate().over_runs == Interval(11 / 6, 11 / 6)


def test_the_speed_up_by_hand() -> None:
    found = quantities(decoded())
    assert found.speedup(STUDENT, "easy").estimate().value == pytest.approx(3)
    # Both ways take thrice as long alike on every prompt: no resample can differ.
    assert found.speedup(STUDENT, "easy").values == pytest.approx(3)
    assert found.average_speedup(STUDENT).estimate().value == pytest.approx(3)


def test_no_recovery_without_a_gain() -> None:
    report = example()
    alike = [Score("teacher", 3, report.scores[1].walks), *report.scores[1:2], report.scores[3]]
    assert quantities(Report(4, tuple(alike), report.details)).recovery(STUDENT) is None
    assert quantities(example()).recovery(Method("dflash", 1)) is None
    assert quantities(Report(4, report.scores[2:], report.details)).recovery(STUDENT) is None


def test_recovery_of_runs_is_of_averages() -> None:
    """A run whose teacher gains little does not outweigh the others; one without a gain counts."""

    def run(more: list[int]) -> Report:
        rounds = {("teacher", 1): [1, 1], ("teacher", 3): more, ("student", 1): [2, 1]}
        return Report(
            4,
            tuple(
                Score(*way, {"easy": [Walk("a", (one,)), Walk("b", (two,))]})
                for way, (one, two) in rounds.items()
            ),
            DETAILS,
        )

    # Tau of the teacher in several passes: 4, 2.5 and 2; of the student 2.5, of one pass 2.
    found = quantities(run([3, 3]), run([2, 1])).recovery(STUDENT)
    assert found is not None
    assert found.value == pytest.approx(100 * 0.5 / 1.25)
    assert found.over_runs is not None
    assert (found.over_runs.low + found.over_runs.high) / 2 == pytest.approx((25 + 100) / 2)
    found = quantities(run([3, 3]), run([1, 1])).recovery(STUDENT)
    assert found is not None
    assert (found.value, found.over_runs, found.runs) == (pytest.approx(100 * 0.5 / 1), None, 2)
    assert found.over_prompts is not None
    assert quantities(run([1, 1]), run([1, 0])).recovery(STUDENT) is None


def test_turns_of_a_prompt_are_drawn_together() -> None:
    names = ["a", "a/2", "HumanEval/1", "HumanEval/2", "b/2"]
    assert prompt_of(names) == {
        "a": "a",
        "a/2": "a",
        "HumanEval/1": "HumanEval/1",
        "HumanEval/2": "HumanEval/2",
        "b/2": "b/2",
    }
    walks = {"talk": [Walk("a", (1,)), Walk("a/2", (2,)), Walk("b", (3,))]}
    found = quantities(Report(4, (Score("student", 1, walks),)))
    # Two prompts of two and one turn: 3 rounds, 4 or 2.
    assert {round(v, 6) for v in found.tau(STUDENT, "talk").values[0]} == {3.0, 2.5, 4.0}


def test_a_data_set_without_rounds_has_no_number() -> None:
    walks = {"empty": [Walk("a", ()), Walk("b", ())]}
    estimate = quantities(Report(4, (Score("student", 1, walks),))).tau(STUDENT, "empty").estimate()
    assert np.isnan(estimate.value)
    assert estimate.over_prompts is None
