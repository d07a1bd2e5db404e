"""8-bit features against hand-made numbers, the stated bounds and a slow loop."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.data.float8 import FLOAT8, decode_float8, encode_float8


def test_a_hand_case() -> None:
    # Scales 448 / 448 = 1 and 896 / 448 = 2; 1 + 1/16 lies halfway between 1 and 1 + 1/8: to even.
    states = torch.tensor([[448.0, 1.0625, -896.0, 3.5], [0.0, 0.0, 896.0, 2.0**-9]])
    values, scales = encode_float8(states, layers=2)
    assert (values.dtype, scales.dtype) == (FLOAT8, torch.float32)
    assert scales.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert values.float().tolist() == [[448, 1.0, -448, 1.75], [0, 0, 448, 0.0]]
    assert decode_float8(values, scales).tolist() == [[448, 1.0, -896, 3.5], [0, 0, 896, 0.0]]


def slow_round(x: float) -> float:
    """The nearest e4m3 number to |x| <= 448, ties to even, by its definition."""
    if x == 0:
        return 0.0
    exponent = max(math.floor(math.log2(abs(x))), -6)
    step = 2.0 ** (exponent - 3)
    return round(x / step) * step  # Python rounds halves to even


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_slow_loop(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    states = (torch.randn(7, 12, generator=generator) * 3).to(dtype)
    values, scales = encode_float8(states, layers=3)
    for s in range(7):
        for layer in range(3):
            row = states[s, layer * 4 : layer * 4 + 4].float()
            scale = row.abs().max() / 448
            assert scales[s, layer] == scale
            expected = [slow_round(float(x / scale)) for x in row]
            assert values[s, layer * 4 : layer * 4 + 4].tolist() == expected


def check_bounds(states: Tensor, *, layers: int) -> None:
    """What the module states: a relative bound, and an absolute one for what is tiny."""
    values, scales = encode_float8(states, layers=layers)
    back = decode_float8(values, scales).double()
    x, s = states.double(), scales.double().repeat_interleave(states.shape[1] // layers, dim=1)
    bound = torch.where(x.abs() >= s / 64, x.abs() / 16, s / 1024)
    assert bool(((back - x).abs() <= bound).all())
    assert bool(torch.isfinite(back).all())


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(
            st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=6, max_size=6
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_bounds_hold_for_any_floats(rows: list[list[float]]) -> None:
    check_bounds(torch.tensor(rows, dtype=torch.float32), layers=2)


@pytest.mark.parametrize("size", [1e-44, 1e-40, 1e-36, 1e-20, 1.0, 3e38])
def test_the_bounds_hold_at_any_size(size: float) -> None:
    """Outliers too: a thousandth of the row lies 40 times above the rest."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(50, 400, generator=generator)
    states[torch.rand(states.shape, generator=generator) < 1e-3] *= 40
    check_bounds(states / states.abs().max() * size, layers=4)


def test_zeros_and_nothing() -> None:
    values, scales = encode_float8(torch.zeros(3, 8), layers=2)
    assert scales.tolist() == [[1.0, 1.0]] * 3
    assert torch.equal(decode_float8(values, scales), torch.zeros(3, 8))
    values, scales = encode_float8(torch.zeros(0, 8), layers=2)
    assert (values.shape, scales.shape) == ((0, 8), (0, 2))
    assert decode_float8(values, scales).shape == (0, 8)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    states = torch.ones(2, 4)
    states[1, 2] = bad
    with pytest.raises(ValueError, match="not finite"):
        encode_float8(states, layers=2)


def test_damage_does_not_decode_to_numbers() -> None:
    values, scales = encode_float8(torch.ones(2, 4), layers=2)
    broken = values.clone()
    broken.view(torch.uint8)[0, 0] = 0x7F  # e4m3's NaN
    assert decode_float8(broken, scales).isnan().sum() == 1
    scales[1, 1] = math.inf
    assert not bool(torch.isfinite(decode_float8(values, scales)[1, 2:]).any())


@pytest.mark.parametrize("shape", [(2, 3), (1, 2), (2, 0), (2, 2, 1)])
def test_scales_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"values .* scales|not a multiple"):
        decode_float8(torch.ones(2, 4).to(FLOAT8), torch.ones(shape))
