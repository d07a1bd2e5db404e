"""Filling blocks from left to right: by hand, a block at a time, and what a block may not see."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.chain import Chain
from tests.maths.generators import seeded

VOCABULARY, RANK = 5, 3
# float64; only the order of additions differs.
EXACT = 1e-12


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def best(logits: Tensor, rows: Tensor) -> Tensor:
    return logits.argmax(dim=1)


@dataclass(frozen=True)
class Case:
    """n blocks with some masked positions; the step remembers all tokens and states before."""

    count: int
    block_size: int
    seed: int
    asked: list[list[int]] = field(default_factory=list)

    @property
    def chain(self) -> Chain:
        embedding = drawn(VOCABULARY, RANK, seed=self.seed + 1)

        def step(
            tokens: Tensor, states: Tensor, memory: Tensor | None
        ) -> tuple[Tensor, Tensor | None]:
            self.asked.append(tokens.tolist())
            old = torch.zeros(len(tokens), RANK).double() if memory is None else memory
            new = (old + 2 * embedding[tokens] + states).cos()
            return new, new

        return Chain(3 * drawn(VOCABULARY, RANK, seed=self.seed), step)

    @property
    def states(self) -> Tensor:
        return drawn(self.count, self.block_size, RANK, seed=self.seed + 2)

    @property
    def blocks(self) -> Tensor:
        shape = (self.count, self.block_size)
        return torch.randint(VOCABULARY, shape, generator=seeded(self.seed + 3))

    @property
    def masked(self) -> Tensor:
        shape = (self.count, self.block_size)
        masked = torch.rand(shape, generator=seeded(self.seed + 4)) < 0.6
        masked[:, 0] = False
        return masked

    @property
    def logits(self) -> Tensor:
        """Of every position, [n, B, V]."""
        return drawn(self.count, self.block_size, VOCABULARY, seed=self.seed + 5)


CASES = st.builds(Case, st.integers(0, 4), st.integers(2, 6), st.integers(0, 10_000))


def slow_fill(case: Case, n: int) -> tuple[list[int], list[Tensor]]:
    """Tokens and corrected logits of one block's masked positions, a position at a time."""
    chain, tokens, memory = case.chain, case.blocks[n].tolist(), None
    picked, corrected = [], []
    for i in range(1, case.block_size):
        latent, memory = chain.step(
            torch.tensor(tokens[i - 1 : i]), case.states[n, i][None], memory
        )
        if not case.masked[n, i]:
            continue
        logits = torch.stack(
            [case.logits[n, i, v] + (latent[0] * chain.weight[v]).sum() for v in range(VOCABULARY)]
        )
        tokens[i] = int(logits.argmax())
        picked.append(tokens[i])
        corrected.append(logits)
    return picked, corrected


def test_by_hand() -> None:
    # The latent is the token before, and it speaks for id 1, twice as loudly for id 2.
    weight = torch.tensor([[0.0], [1.0], [2.0], [0.0]])
    chain = Chain(weight, lambda tokens, states, memory: (tokens[:, None].float(), None))
    blocks = torch.tensor([[1, 3, 3, 0], [0, 3, 1, 3]])
    masked = torch.tensor([[False, True, True, False], [False, True, False, True]])
    logits = torch.tensor([[1.5, 0, 0, 0], [5, 0, 0, 0], [0.5, 0, 0, 0], [3, 0, 0, 0]])
    found = chain.fill(logits, torch.zeros(2, 4, 1), blocks, masked, pick=best)
    # Block 0: after its anchor 1 comes 2 with 2 > 1.5; after that 5 is beaten by nothing: 4 < 5.
    # Block 1: after 0 nothing is corrected; after the known 1 stays 3 > 2.
    assert found.tolist() == [2, 0, 0, 0]
    assert logits.tolist() == [[1.5, 1, 2, 0], [5, 2, 4, 0], [0.5, 0, 0, 0], [3, 1, 2, 0]]
    assert blocks.tolist() == [[1, 3, 3, 0], [0, 3, 1, 3]], "the caller's own"


@given(CASES)
def test_against_the_loop(case: Case) -> None:
    logits = case.logits[case.masked]
    found = case.chain.fill(logits, case.states, case.blocks, case.masked, pick=best)
    rows = [slow_fill(case, n) for n in range(case.count)]
    assert found.tolist() == [token for tokens, _ in rows for token in tokens]
    expected = [row for _, corrected in rows for row in corrected]
    torch.testing.assert_close(
        logits, torch.stack(expected) if expected else logits[:0], rtol=EXACT, atol=EXACT
    )


@given(CASES)
def test_every_position_is_asked_with_the_token_before_it(case: Case) -> None:
    """Committed tokens as they are, and what was picked where none is; never the position's own."""
    picked = case.chain.fill(
        case.logits[case.masked], case.states, case.blocks, case.masked, pick=best
    )
    filled = case.blocks.masked_scatter(case.masked, picked)
    assert case.asked == filled[:, :-1].T.tolist()


@given(CASES)
def test_a_block_does_not_see_the_others(case: Case) -> None:
    """To the last digit: what one has committed must not show in another."""
    together = case.logits[case.masked]
    case.chain.fill(together, case.states, case.blocks, case.masked, pick=best)
    if case.count == 0:
        assert together.shape == (0, VOCABULARY)
        return
    masked = case.masked.clone()
    masked[1:] = False
    other = case.logits[masked]
    case.chain.fill(other, case.states, case.blocks, masked, pick=best)
    assert torch.equal(other, together[: len(other)])


def test_a_pick_is_told_its_rows_and_may_use_up_what_it_is_given() -> None:
    case = Case(3, 5, seed=1)
    logits, rows_seen = case.logits[case.masked], list[int]()

    def pick(corrected: Tensor, rows: Tensor) -> Tensor:
        rows_seen.extend(rows.tolist())
        assert torch.equal(logits[rows], corrected)
        tokens = best(corrected, rows)
        corrected.fill_(torch.nan)
        return tokens

    case.chain.fill(logits, case.states, case.blocks, case.masked, pick=pick)
    assert not logits.isnan().any()
    assert sorted(rows_seen) == list(range(len(logits)))


def test_nothing_masked() -> None:
    case = Case(2, 4, seed=0)
    nowhere = torch.zeros(2, 4, dtype=torch.bool)
    found = case.chain.fill(case.logits[nowhere], case.states, case.blocks, nowhere, pick=best)
    assert found.dtype == torch.int64
    assert found.tolist() == []
