"""A correction of logits and its gradients, tile by tile, against the whole at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.correction import CorrectionGradients
from tests.maths.generators import seeded

RANK, VOCABULARY = 3, 6
EXACT = 1e-12


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def gradients(rows: int, *, seed: int = 0) -> CorrectionGradients:
    return CorrectionGradients.of(
        drawn(rows, RANK, seed=seed),
        drawn(VOCABULARY, RANK, seed=seed + 1),
        drawn(rows, seed=seed + 2).abs(),
    )


def test_by_hand() -> None:
    # Rank 1, two ids: row 0 is corrected by 2 (1, -1), row 1 by 3 (1, -1).
    latents, weight = torch.tensor([[2.0], [3.0]]), torch.tensor([[1.0], [-1.0]])
    found = CorrectionGradients.of(latents, weight, torch.tensor([1.0, 10.0]))
    logits = torch.zeros(1, 2)
    found.add_to(logits, slice(1, 2))
    assert logits.tolist() == [[3, -3]]
    # Slopes (1, 4) in row 1 of weight 10: 10 (1 - 4) for the latent, 10 * 3 (1, 4) for the weight.
    found.learn(torch.tensor([[1.0, 4.0]]), slice(1, 2))
    assert found.by_latents.tolist() == [[0], [-30]]
    assert found.by_weight.tolist() == [[30], [120]]
    # And row 0: 1 (5 - 1), and 1 * 2 (5, 1) more.
    found.learn(torch.tensor([[5.0, 1.0]]), slice(0, 1))
    assert found.by_latents.tolist() == [[4], [-30]]
    assert found.by_weight.tolist() == [[40], [122]]


@pytest.mark.parametrize("rows_per_tile", [1, 2, 5, 9])
def test_against_the_loop(rows_per_tile: int) -> None:
    rows = 5
    found, slope = gradients(rows), drawn(rows, VOCABULARY, seed=9)
    before = drawn(rows, VOCABULARY, seed=8)
    logits = before.clone()
    for start in range(0, rows, rows_per_tile):
        tile = slice(start, start + rows_per_tile)
        found.add_to(logits[tile], tile)
        found.learn(slope[tile], tile)
    by_weight = torch.zeros(VOCABULARY, RANK).double()
    for r in range(rows):
        for v in range(VOCABULARY):
            bias = sum(float(found.latents[r, i] * found.weight[v, i]) for i in range(RANK))
            assert float(logits[r, v]) == pytest.approx(float(before[r, v]) + bias, abs=EXACT)
            by_weight[v] += found.row_weights[r] * slope[r, v] * found.latents[r]
        expected = sum(slope[r, v] * found.weight[v] for v in range(VOCABULARY))
        torch.testing.assert_close(
            found.by_latents[r], found.row_weights[r] * expected, rtol=EXACT, atol=EXACT
        )
    torch.testing.assert_close(found.by_weight, by_weight, rtol=EXACT, atol=EXACT)


@given(st.integers(0, 6), st.integers(0, 10_000), st.booleans())
def test_what_is_added_can_be_taken_back(rows: int, seed: int, half: bool) -> None:
    """In half precision, too: the same rounded product both times."""
    found, before = gradients(rows, seed=seed), drawn(rows, VOCABULARY, seed=seed + 3)
    if half:
        found = CorrectionGradients.of(
            found.latents.bfloat16(), found.weight.bfloat16(), found.row_weights
        )
    logits = before.clone()
    found.add_to(logits, slice(0, rows))
    expected = before + (found.latents @ found.weight.T)
    torch.testing.assert_close(logits, expected, rtol=EXACT, atol=EXACT)
    found.add_to(logits, slice(0, rows), sign=-1)
    torch.testing.assert_close(logits, before, rtol=EXACT, atol=EXACT)


def test_gradients_are_kept_in_the_precision_of_latents_and_of_row_weights() -> None:
    found = CorrectionGradients.of(
        torch.ones(300, 1).bfloat16(), torch.ones(2, 1).bfloat16(), torch.ones(300)
    )
    for row in range(300):
        found.learn(torch.ones(1, 2), slice(row, row + 1))
    assert found.by_latents.dtype == torch.bfloat16
    # A sum of ones in bfloat16 ends at 256.
    assert found.by_weight.tolist() == [[300], [300]]


def test_no_row() -> None:
    found = gradients(0)
    found.add_to(torch.zeros(0, VOCABULARY).double(), slice(0, 0))
    found.learn(torch.zeros(0, VOCABULARY).double(), slice(0, 0))
    assert found.by_latents.shape == (0, RANK)
    assert torch.equal(found.by_weight, torch.zeros(VOCABULARY, RANK).double())
