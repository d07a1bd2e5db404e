"""The frozen head against its formula, and memory that is used again."""

from __future__ import annotations

from math import tanh

import pytest
import torch

from specforge_dstill.maths.frozen_head import FrozenHead, ReusedLogits

WEIGHT = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
BIAS = torch.tensor([0.5, 0.0, -1.0])
ROWS = torch.tensor([[3.0, 1.0], [0.0, -2.0]])


def test_by_hand() -> None:
    head = FrozenHead(WEIGHT, BIAS)
    expected = [[3.5, 2.0, 3.0], [0.5, -4.0, -3.0]]
    assert head.logits(ROWS, out=torch.empty(2, 3)).tolist() == expected
    capped = FrozenHead(WEIGHT, BIAS, softcap=2.0).logits(ROWS, out=torch.empty(2, 3))
    torch.testing.assert_close(
        capped, torch.tensor([[2 * tanh(x / 2) for x in row] for row in expected])
    )


def test_no_row() -> None:
    assert ReusedLogits(FrozenHead(WEIGHT))(ROWS[:0]).shape == (0, 3)


def test_the_next_call_uses_the_same_memory() -> None:
    head = ReusedLogits(FrozenHead(WEIGHT))
    first = head(ROWS)
    kept = first.clone()
    second = head(ROWS[1:])
    assert second.data_ptr() == first.data_ptr()
    assert second.tolist() == kept[1:].tolist() == [[0.0, -4.0, -2.0]]
    larger = head(ROWS.repeat(2, 1))
    assert larger.tolist() == kept.repeat(2, 1).tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_are_float32_whatever_the_head_is(dtype: torch.dtype) -> None:
    found = ReusedLogits(FrozenHead(WEIGHT.to(dtype)))(ROWS.to(dtype))
    assert found.dtype == torch.float32
    assert torch.equal(found, ROWS @ WEIGHT.T)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_its_gradient_is_autograds(softcap: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    rows = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    direction = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    head = FrozenHead(weight, softcap=softcap)
    logits = head.logits(rows, out=torch.empty(4, 5, dtype=torch.float64))
    found = head.backward(direction.clone(), logits)
    leaf = rows.clone().requires_grad_()
    plain = leaf @ weight.T
    plain = plain if softcap is None else softcap * torch.tanh(plain / softcap)
    (expected,) = torch.autograd.grad((plain * direction).sum(), leaf)
    torch.testing.assert_close(found, expected)


def test_against_a_slow_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, rows = (torch.randn(n, 3, generator=generator) for n in (6, 4))
    bias = torch.randn(6, generator=generator)
    found = FrozenHead(weight, bias).logits(rows, out=torch.empty(4, 6))
    for r in range(4):
        for v in range(6):
            expected = sum(float(rows[r, h] * weight[v, h]) for h in range(3)) + float(bias[v])
            assert float(found[r, v]) == pytest.approx(expected, abs=1e-5)
