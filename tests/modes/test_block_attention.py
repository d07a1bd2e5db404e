"""Three ways to the same attention: in groups, dense, and SpecForge's own mask."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from typing import Any

import pytest
import torch
from specforge.algorithms.common.dflash_family_model import create_dflash_sdpa_mask
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask, flex_attention
from transformers import AttentionInterface

from specforge_dstill.modes.block_attention import BlockLayout, register_attention
from specforge_dstill.modes.grouped_attention import grouped_attention

B, S, HEADS, KV_HEADS, D = 4, 19, 4, 2, 8
# Unsorted, with a twin, one without context, one at the last position.
ANCHORS = torch.tensor([[7, 0, 18, 7, 3], [1, 12, 2, 16, 0]])
N = ANCHORS.shape[1]
# Some roundings of each dtype on sums of some dozen numbers of size 1.
TOLERANCE = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.float64: {"atol": 1e-13, "rtol": 1e-13},
}
KINDS = [(None, False), (6, True), (6, False), (1, True), (None, True), (40, True)]


def layout(window: int | None, causal: bool, group: int = 64) -> BlockLayout:
    return BlockLayout(ANCHORS, S, B, window, causal, group)


def may_see(
    anchor: int, offset: int, key: int, block: int, window: int | None, causal: bool
) -> bool:
    """The rule in words: context before the anchor, and the own block."""
    if key < S:
        # A query at anchor + offset sees ``window`` positions, its own included.
        return key < anchor and (window is None or key > anchor + offset - window)
    own, at = divmod(key - S, B)
    return own == block and (not causal or at <= offset)


def states(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    samples, keys = len(ANCHORS), S + N * B
    return (
        torch.randn(samples, HEADS, N * B, D, dtype=dtype, requires_grad=True),
        torch.randn(samples, KV_HEADS, keys, D, dtype=dtype, requires_grad=True),
        torch.randn(samples, KV_HEADS, keys, D, dtype=dtype, requires_grad=True),
    )


def dense_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Softmax over a whole mask, each key/value head repeated for its query heads."""
    key, value = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * D**-0.5
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize(("window", "causal"), KINDS)
def test_the_dense_mask_is_the_rule(window: int | None, causal: bool) -> None:
    mask = layout(window, causal).dense_mask()
    assert mask.shape == (2, 1, N * B, S + N * B)
    for b, n, i, key in product(range(2), range(N), range(B), range(S + N * B)):
        expected = may_see(int(ANCHORS[b, n]), i, key, n, window, causal)
        assert bool(mask[b, 0, n * B + i, key]) == expected, (b, n, i, key)


@pytest.mark.parametrize(("window", "causal"), [(None, False), (6, True), (1, True), (40, True)])
def test_the_dense_mask_is_specforges(window: int | None, causal: bool) -> None:
    keep = torch.ones_like(ANCHORS, dtype=torch.bool)
    theirs = create_dflash_sdpa_mask(ANCHORS, keep, S, B, "cpu", sliding_window=window)
    assert torch.equal(layout(window, causal).dense_mask(), theirs)


@pytest.mark.parametrize(("window", "causal"), KINDS)
@pytest.mark.parametrize("group", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_groups_and_the_dense_mask_agree_with_gradients(
    window: int | None, causal: bool, group: int, dtype: torch.dtype
) -> None:
    grouped, dense = states(dtype), states(dtype)
    found = grouped_attention(*grouped, layout(window, causal, group), D**-0.5)
    expected = dense_attention(*dense, layout(window, causal).dense_mask())
    torch.testing.assert_close(found, expected, **TOLERANCE[dtype])
    direction = torch.randn(found.shape, dtype=dtype)
    found.backward(direction)
    expected.backward(direction)
    for ours, theirs in zip(grouped, dense, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, **TOLERANCE[dtype])


@pytest.mark.parametrize(("window", "causal"), KINDS)
def test_the_flex_mask_is_the_dense_mask(window: int | None, causal: bool) -> None:
    ours = layout(window, causal)
    blocks = ours.flex_mask()
    found = create_mask(blocks.mask_mod, 2, 1, N * B, S + N * B, device="cpu")
    assert torch.equal(found, ours.dense_mask())
    with torch.no_grad():
        query, key, value = (x.detach() for x in states())  # no backward pass on a CPU
        flexible = flex_attention(
            query, key, value, block_mask=blocks, scale=D**-0.5, enable_gqa=True
        )
        grouped = grouped_attention(query, key, value, ours, D**-0.5)
    torch.testing.assert_close(flexible.transpose(1, 2), grouped, **TOLERANCE[torch.float32])


def test_transformers_layers_hand_over_the_layout_in_the_place_of_the_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scale is theirs, or one over the root of D; there are no attention weights."""
    known: dict[str, Any] = {}
    monkeypatch.setattr(AttentionInterface, "register", known.__setitem__)
    given = []

    def attend(
        query: Tensor, key: Tensor, value: Tensor, ours: BlockLayout, scale: float
    ) -> Tensor:
        given.append((ours, scale))
        return query + key - value

    register_attention("a name", attend)
    ours, query = layout(None, False), torch.full((1, 2, 3, 4), 5.0)
    for scaling in ({"scaling": 0.3}, {"scaling": None}, {}):
        found, weights = known["a name"](
            torch.nn.Identity(),
            query,
            query + 2,
            query,
            ours,
            dropout=0.0,
            is_causal=None,
            **scaling,
        )
        assert weights is None
        assert torch.equal(found, query + 2)
    assert given == [(ours, 0.3), (ours, 0.5), (ours, 0.5)]


def test_an_anchor_list_that_is_not_sorted_and_no_sample() -> None:
    assert layout(None, False, group=2).group_lengths == [[7, 18, 3], [12, 16, 0]]
    assert BlockLayout(ANCHORS[:0], S, B).group_lengths == []


PEAK = """
import sys, torch
from specforge_dstill.modes.block_attention import BlockLayout
from specforge_dstill.modes.grouped_attention import grouped_attention

def status(name):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[name].split()[0]) / 1024

torch.set_num_threads(1)
S, N, B = 4096, 256, 16
query, key, value = (
    torch.randn(1, heads, length, 8, requires_grad=True)
    for heads, length in ((2, N * B), (1, S + N * B), (1, S + N * B))
)
anchors = torch.linspace(0, S - 1, N).long()[None]
before = status("VmRSS")
for group in (8, 1):
    layout = BlockLayout(anchors, S, B, blocks_per_group=group)
    output = grouped_attention(query, key, value, layout, 8**-0.5)
    output.sum().backward()
print(status("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of a process")
def test_memory_is_bounded_by_the_group_and_not_by_the_number_of_blocks() -> None:
    """256 blocks over 4,096 positions: the dense mask alone would be 32 MB, in float32 128."""

    command = [sys.executable, "-W", "ignore", "-c", PEAK]
    peak = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # A group's mask is at most 0.5 MB as bool and 2 as float32, and so are keys and values; the
    # whole gradients are 1.5 MB. The rest is the allocator's.
    assert peak < 32
