"""Drawing an id: by hand, against the loop, and in distribution by chi-square."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.drawing import draw, draw_at
from specforge_dstill.maths.logits import GROUP_SIZE
from tests.chance import chi_square
from tests.maths.generators import seeded

# Within a group, whole groups, and ids left over behind them.
SIZES = [1, 5, GROUP_SIZE, GROUP_SIZE + 1, 3 * GROUP_SIZE, 1000]


def some_weights(rows: int, size: int, *, seed: int) -> Tensor:
    """[rows, size] float32 that do not sum to 1; a third of them, and whole groups, are 0."""
    generator = seeded(seed)
    weights = 9 * torch.rand(rows, size, generator=generator) ** 3
    weights[torch.rand(rows, size, generator=generator) < 1 / 3] = 0
    weights[:, GROUP_SIZE : 2 * GROUP_SIZE] = 0
    weights[:, 0] += 1e-3
    return weights


def slow_draw(weights: list[float], uniform: float) -> int:
    """The first id at which the running sum passes ``uniform`` of the whole."""
    wanted, passed = uniform * sum(weights), 0.0
    for index, weight in enumerate(weights):
        passed += weight
        if passed > wanted:
            return index
    return max(index for index, weight in enumerate(weights) if weight > 0)


def test_by_hand() -> None:
    weights = torch.tensor([0.0, 1.0, 0.0, 2.0, 1.0, 0.0])
    uniform = torch.tensor([0.0, 0.24, 0.25, 0.74, 0.75, 0.99])
    found = draw_at(weights.expand(6, -1), uniform)
    assert found.dtype == torch.int64
    assert found.tolist() == [1, 1, 3, 3, 4, 4]


def test_by_hand_across_groups() -> None:
    """A quarter in the first group, nothing in the second, three quarters in the third."""
    weights = torch.zeros(4, 2 * GROUP_SIZE + 6)
    weights[:, 7], weights[:, 2 * GROUP_SIZE + 1], weights[:, 2 * GROUP_SIZE + 4] = 1, 1, 2
    found = draw_at(weights, torch.tensor([0.2, 0.25, 0.49, 0.5]))
    first, last = 2 * GROUP_SIZE + 1, 2 * GROUP_SIZE + 4
    assert found.tolist() == [7, first, first, last]


@pytest.mark.parametrize("size", SIZES)
def test_the_ends_are_the_first_and_the_last_id_that_has_a_weight(size: int) -> None:
    weights = some_weights(200, size, seed=size)
    weights[:, -1] *= torch.arange(200) % 2
    weights[:, 0] = weights[:, 0].clamp_min(1e-30)
    places = torch.arange(size).expand(200, -1)
    for number, expected in (
        (0.0, places.masked_fill(weights == 0, size).amin(1)),
        (1.0, places.masked_fill(weights == 0, -1).amax(1)),
    ):
        assert torch.equal(draw_at(weights, torch.full((200,), number)), expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_the_loop(size: int, dtype: torch.dtype) -> None:
    weights = some_weights(200, size, seed=size).to(dtype)
    uniform = torch.rand(200, generator=seeded(1), dtype=torch.float64)
    expected = [
        slow_draw(row, number)
        for row, number in zip(weights.tolist(), uniform.tolist(), strict=True)
    ]
    assert draw_at(weights, uniform).tolist() == expected


@given(st.integers(0, 100_000), st.integers(1, 12), st.sampled_from(SIZES), st.floats(1e-20, 1e20))
def test_each_row_has_its_own_number_and_a_factor_says_nothing(
    seed: int, rows: int, size: int, factor: float
) -> None:
    """So neither tiles nor batches nor a missing normalisation move what is drawn."""
    weights = some_weights(rows, size, seed=seed).double()
    uniform = torch.rand(rows, generator=seeded(seed), dtype=torch.float64)
    together = draw_at(weights, uniform)
    assert (weights.gather(1, together[:, None]) > 0).all()
    alone = [draw_at(weights[i : i + 1], uniform[i : i + 1]) for i in range(rows)]
    assert torch.equal(torch.cat(alone), together)
    assert torch.equal(draw_at(factor * weights, uniform), together)


def test_a_larger_number_never_draws_a_lower_id() -> None:
    weights = some_weights(1, 1000, seed=3).expand(5000, -1)
    found = draw_at(weights, torch.linspace(0, 1, 5000, dtype=torch.float64))
    assert (found.diff() >= 0).all()


@pytest.mark.parametrize("size", SIZES)
def test_no_row(size: int) -> None:
    none = torch.zeros(0, size)
    assert draw_at(none, torch.zeros(0)).tolist() == []
    generator = seeded(0)
    before = generator.get_state()
    assert draw(none, generator=generator).dtype == torch.int64
    assert torch.equal(generator.get_state(), before)


def test_a_weight_alone_is_drawn_however_small() -> None:
    chosen = torch.tensor([0, 63, 64, 130, 299])
    weights = torch.zeros(5, 300).scatter(1, chosen[:, None], 1e-30)
    assert torch.equal(draw(weights, generator=seeded(0)), chosen)


def test_a_generator_gives_one_number_a_row() -> None:
    """In the order of the rows, in float64: what is drawn by a seed is a result."""
    weights = some_weights(50, 1000, seed=2)
    uniform = torch.rand(50, generator=seeded(5), dtype=torch.float64)
    generator = seeded(5)
    assert torch.equal(draw(weights, generator=generator), draw_at(weights, uniform))
    after = seeded(5)
    torch.rand(50, generator=after, dtype=torch.float64)
    assert torch.equal(generator.get_state(), after.get_state())


@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_is_drawn_from_the_global_source_of_randomness(rows: int) -> None:
    with pytest.raises(ValueError, match="needs a generator"):
        draw(torch.ones(rows, 5), generator=None)


@pytest.mark.parametrize("size", SIZES[1:])
def test_ids_are_drawn_in_proportion_to_their_weights(size: int) -> None:
    weights = some_weights(1, size, seed=4)
    found = draw(weights.expand(50_000, -1), generator=seeded(1))
    counts, probabilities = torch.bincount(found, minlength=size), weights[0].double()
    assert chi_square(counts, probabilities / probabilities.sum()) > 0.01
    # The test would tell if the ids beside them were drawn.
    moved = probabilities.roll(1) + 1e-9
    assert chi_square(counts, moved / moved.sum()) < 1e-4
