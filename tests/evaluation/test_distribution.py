"""Sampled decoding against exact enumeration: every continuation of 4 tokens, by chi-square.

The seeds are fixed: of correct rules, too, one seed in a hundred gives p < 0.01. The answers of 700
seeds of rejection, 14 million at once, gave p = 0.47.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specforge_dstill.evaluation.decoding import decode
from specforge_dstill.evaluation.rules import Comparison, Rejection, Rule
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.maths.drawing import draw
from specforge_dstill.maths.verification import (
    Accepted,
    accept_by_comparison,
    accept_by_rejection,
)
from tests.chance import chi_square
from tests.evaluation.chance import (
    LENGTH,
    PROMPT,
    Judge,
    Table,
    TableDrafter,
    TableTarget,
    as_tensor,
    cells,
    decode_many,
)

DRAWS = 20_000
WIDE, NARROW = Sampling(temperature=1.0), Sampling(temperature=1.3, top_k=4, top_p=0.9)
TARGET, DRAFT = Table.random(seed=1), Table.random(seed=2)


def by_comparison(sampling: Sampling) -> Judge:
    def judge(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> Accepted:
        picked = sampling.tokens(p.flatten(0, 1), generator).view(p.shape[:-1])
        return accept_by_comparison(drafted, picked)

    return judge


def by_rejection(sampling: Sampling) -> Judge:
    def judge(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> Accepted:
        return accept_by_rejection(
            drafted,
            draft_probabilities=probabilities(sampling, q),
            target_probabilities=probabilities(sampling, p),
            generator=generator,
        )

    return judge


def probabilities(sampling: Sampling, logits: Tensor) -> Tensor:
    return sampling.probabilities(logits.flatten(0, 1)).view_as(logits)


@pytest.mark.parametrize("sampling", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("greedy", [True, False], ids=["greedy draft", "sampled draft"])
def test_comparison_keeps_the_targets_distribution(sampling: Sampling, greedy: bool) -> None:
    judge = by_comparison(sampling)
    counts, mean = decode_many(TARGET, DRAFT, judge, sampling=sampling, greedy=greedy, draws=DRAWS)
    assert chi_square(counts, TARGET.exact(sampling)) > 0.01
    # Both verdicts are common: there was something to decide.
    assert 0.1 < mean < 2


@pytest.mark.parametrize("sampling", [WIDE, NARROW], ids=["wide", "narrow"])
def test_rejection_keeps_the_targets_distribution(sampling: Sampling) -> None:
    counts, mean = decode_many(
        TARGET, DRAFT, by_rejection(sampling), sampling=sampling, greedy=False, draws=DRAWS
    )
    assert chi_square(counts, TARGET.exact(sampling)) > 0.01
    assert 0.5 < mean < 2.5


@pytest.mark.parametrize(
    ("rule", "draft"),
    [(Comparison, None), (Rejection, NARROW)],
    ids=["comparison", "rejection"],
)
def test_the_loop_keeps_it_too(rule: Callable[[Sampling], Rule], draft: Sampling | None) -> None:
    """Fewer draws, through ``decode``: prompt, rounds, rolling back, the end of an answer."""
    generator = torch.Generator().manual_seed(0)
    answers = [
        decode(
            TableTarget(TARGET),
            TableDrafter(DRAFT, draft),
            PROMPT,
            rule=rule(NARROW),
            stop_ids=(),
            max_new_tokens=LENGTH,
            generator=generator,
        ).tokens
        for _ in range(1200)
    ]
    assert chi_square(cells(as_tensor(answers)), TARGET.exact(NARROW)) > 0.01


# Verifiers that are wrong, each in a way that is easily written.


def no_residual(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> Accepted:
    """After a rejection it draws from p, not from what is left of it."""
    found = by_rejection(WIDE)(drafted, q, p, generator)
    rows = torch.arange(len(p))
    last = probabilities(WIDE, p)[rows, found.lengths]
    return Accepted(found.lengths, draw(last, generator=generator))


def draft_at_another_temperature(
    drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator
) -> Accepted:
    """It is told a q that the tokens were not drawn from."""
    return by_rejection(WIDE)(drafted, q / 0.7, p, generator)


def most_probable_correction(
    drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator
) -> Accepted:
    """It puts the most probable token after the accepted ones, not the one it picked."""
    found = by_comparison(WIDE)(drafted, q, p, generator)
    return Accepted(found.lengths, p[torch.arange(len(p)), found.lengths].argmax(-1))


def one_position_on(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> Accepted:
    """It compares with the distribution after the token, not before it."""
    return by_comparison(WIDE)(drafted, q, torch.cat([p[:, 1:], p[:, -1:]], dim=1), generator)


def all_accepted(drafted: Tensor, q: Tensor, p: Tensor, generator: torch.Generator) -> Accepted:
    """It trusts the draft's last token too much."""
    found = by_comparison(WIDE)(drafted, q, p, generator)
    return Accepted((found.lengths + 1).clamp_max(drafted.shape[1]), found.next_tokens)


@pytest.mark.parametrize(
    ("judge", "greedy"),
    [
        (no_residual, False),
        (draft_at_another_temperature, False),
        (most_probable_correction, True),
        (one_position_on, True),
        (all_accepted, True),
    ],
)
def test_a_broken_verifier_is_caught(judge: Judge, greedy: bool) -> None:
    counts, _ = decode_many(TARGET, DRAFT, judge, sampling=WIDE, greedy=greedy, draws=DRAWS)
    assert chi_square(counts, TARGET.exact(WIDE)) < 1e-4


def test_the_yardstick_itself() -> None:
    """Counts of the exact distribution pass; of one a little off they do not."""
    exact = TARGET.exact(WIDE)
    assert float(exact.sum()) == pytest.approx(1)
    generator = torch.Generator().manual_seed(0)
    own = torch.multinomial(exact, DRAWS, replacement=True, generator=generator)
    counts = torch.bincount(own, minlength=len(exact))
    assert chi_square(counts, exact) > 0.01
    assert chi_square(counts, TARGET.exact(Sampling(temperature=1.1))) < 1e-4
    impossible = torch.where(exact == exact.max(), 0, exact)
    assert chi_square(counts, impossible) < 1e-4
