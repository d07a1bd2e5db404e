"""Walking answers: hand-computed with scripted drafters."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

import pytest
import torch
from torch import Tensor

from specforge_dstill.evaluation.replay import (
    Answer,
    Walk,
    acceptance_by_position,
    mean_acceptance,
    walk,
)

BLOCK = 4
WRONG = 99


class Oracle:
    """Knows every text by its features (token + position), and errs where it is told to.

    ``right[(name of the first feature, anchor)]`` is how many leading tokens it drafts right;
    all by default.
    """

    def __init__(
        self, texts: Sequence[Sequence[int]], right: dict[tuple[int, int], int] | None = None
    ) -> None:
        self.texts = {text[0]: list(text) for text in texts}
        self.right = right or {}
        self.rounds: list[list[int]] = []

    @property
    def block_size(self) -> int:
        return BLOCK

    def begin(self, hidden_states: Tensor) -> OracleSession:
        return OracleSession(self, hidden_states)


class OracleSession:
    def __init__(self, oracle: Oracle, hidden_states: Tensor) -> None:
        self.oracle, self.keys = oracle, hidden_states[:, 0, 0].long()

    def draft(self, anchors: Tensor, anchor_ids: Tensor) -> Tensor:
        self.oracle.rounds.append(anchors.tolist())
        return torch.tensor(
            [
                self._row(*row)
                for row in zip(
                    self.keys.tolist(), anchors.tolist(), anchor_ids.tolist(), strict=True
                )
            ]
        )

    def _row(self, key: int, anchor: int, anchor_id: int) -> list[int]:
        text = self.oracle.texts[key]
        assert text[anchor] == anchor_id
        # Past the end it goes on with the last token: that must never count.
        block = [*text, *[text[-1]] * BLOCK][anchor + 1 : anchor + BLOCK]
        right = self.oracle.right.get((key, anchor), BLOCK)
        return [token if i < right else WRONG for i, token in enumerate(block)]

    def keep(self, rows: Tensor) -> None:
        self.keys = self.keys[rows]


def answer(text: Sequence[int], start: int) -> Answer:
    ids = torch.tensor(list(text))
    return Answer(f"text-{text[0]}", ids, start, lambda: ids[:, None].float())


def accepted(
    oracle: Oracle, answers: Sequence[Answer], batch_size: int = 32
) -> list[tuple[int, ...]]:
    return [found.accepted for found in walk(oracle, answers, batch_size=batch_size)]


def test_a_walk_by_hand() -> None:
    # Prompt 10 11, answer 12 … 19 at positions 2 … 9.
    text = range(10, 20)
    oracle = Oracle([text], right={(10, 2): 1, (10, 4): 0, (10, 5): 2})
    # Anchor 2: 1 accepted, the target gives position 4. There 0, then 5: 2 accepted, then 8:
    # one token is left and accepted, the two drafted past the end do not count.
    assert accepted(oracle, [answer(text, 2)]) == [(1, 0, 2, 1)]
    assert oracle.rounds == [[2], [4], [5], [8]]


@pytest.mark.parametrize("length", range(1, 12))
def test_a_perfect_drafter_needs_the_fewest_rounds(length: int) -> None:
    text = range(10, 13 + length)
    (found,) = accepted(Oracle([text]), [answer(text, 3)])
    # The first token is the target's; each round gives at most B tokens.
    assert len(found) == -(-(length - 1) // BLOCK)
    # Each round but the last ends with a token of the target's own.
    assert all(count == BLOCK - 1 for count in found[:-1])
    assert sum(found) + len(found) - (length - 1) in (0, 1)


def test_an_answer_of_one_token_needs_no_round() -> None:
    oracle = Oracle([[10, 11, 2]])
    assert accepted(oracle, [answer([10, 11, 2], 2)]) == [()]
    assert oracle.rounds == []


def test_a_useless_drafter_gives_a_round_for_every_token_but_the_first() -> None:
    text = range(10, 20)
    useless = Oracle([text], right={(10, anchor): 0 for anchor in range(10)})
    assert accepted(useless, [answer(text, 4)]) == [(0,) * 5]


@pytest.mark.parametrize("batch_size", [2, 3, 32])
def test_a_batch_of_different_lengths_equals_one_at_a_time(batch_size: int) -> None:
    texts = [range(100 * i, 100 * i + 6 + 3 * i) for i in (5, 1, 3, 2, 4, 6)]
    right = {(t[0], a): (t[0] // 100 + a) % BLOCK for t in texts for a in range(30)}
    answers = [answer(text, 2 + i % 3) for i, text in enumerate(texts)]
    together = walk(Oracle(texts, right), answers, batch_size=batch_size)
    alone = [walk(Oracle(texts, right), [one])[0] for one in answers]
    assert together == alone
    assert [found.name for found in together] == [one.name for one in answers]


def test_features_are_read_a_batch_at_a_time_and_progress_is_told() -> None:
    texts = [range(100 * i, 100 * i + 8) for i in range(1, 6)]
    read, done = [], []
    answers = []
    for text in texts:
        one = answer(text, 2)

        def features(one: Answer = one) -> Tensor:
            read.append((one.name, len(done)))
            return one.features()

        answers.append(Answer(one.name, one.input_ids, one.start, features))
    walk(Oracle(texts), answers, batch_size=2, update=done.append)
    assert done == [2, 2, 1]
    assert [batch for _, batch in read] == [0, 0, 1, 1, 2]


def test_no_answers_no_walks() -> None:
    assert walk(Oracle([]), []) == []


def test_tau_and_acceptance_by_position() -> None:
    walks = [Walk("a", (3, 0)), Walk("b", ()), Walk("c", (1, 1))]
    assert mean_acceptance(walks) == 1 + 5 / 4
    shares = acceptance_by_position(walks, block_size=BLOCK)
    assert shares == [3 / 4, 1 / 4, 1 / 4]
    assert mean_acceptance(walks) == 1 + sum(shares)


@pytest.mark.parametrize("walks", [[], [Walk("a", ())]])
def test_nothing_drafted(walks: list[Walk]) -> None:
    assert isnan(mean_acceptance(walks))
    shares = acceptance_by_position(walks, block_size=BLOCK)
    assert len(shares) == BLOCK - 1
    assert all(map(isnan, shares))
