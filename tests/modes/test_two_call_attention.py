"""Two calls and a merge against one call with the whole mask, on a stand-in for flash-attn."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specforge_dstill.errors import UserError
from specforge_dstill.mode_names import DSTILL_MODES
from specforge_dstill.modes import registry
from specforge_dstill.modes.block_attention import BlockLayout
from specforge_dstill.modes.two_call_attention import two_call_attention
from specforge_dstill.options import DstillOptions
from tests.modes.support import FULL, MIXED, all_anchors, make_drafter, make_sample, roll

B, S, HEADS, KV_HEADS, D = 4, 19, 4, 2, 8
ANCHORS = torch.tensor([[0, 3, 7, 7, 18], [1, 2, 12, 16, 19]])
N = ANCHORS.shape[1]
KINDS = [(None, False), (None, True), (5, False), (6, True), (40, False)]


def stand_in(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    *,
    return_softmax_lse: bool,
) -> tuple[Tensor, Tensor]:
    """flash_attn_with_kvcache in loops, by its documentation.

    Query i of Q stands at key L - Q + i of L keys; a window counts from there, and -1 is without
    a limit. Without a key the output is 0 and the log-sum-exp +inf, as in flash-attn 2.
    """
    assert return_softmax_lse
    assert softmax_scale is not None
    blocks, queries, heads, _ = q.shape
    out, lse = torch.zeros_like(q), torch.zeros(blocks, heads, queries, dtype=q.dtype)
    for n in range(blocks):
        row = n if cache_batch_idx is None else int(cache_batch_idx[n])
        length = k_cache.shape[1] if cache_seqlens is None else int(cache_seqlens[n])
        for h in range(heads):
            kv = h // (heads // k_cache.shape[2])
            for i in range(queries):
                at = length - queries + i
                low = 0 if window_size[0] < 0 else max(0, at - window_size[0])
                high = at if causal else length - 1
                keys = k_cache[row, low : high + 1, kv]
                scores = keys @ q[n, i, h] * softmax_scale
                if not len(keys):
                    lse[n, h, i] = torch.inf
                    continue
                out[n, i, h] = scores.softmax(0) @ v_cache[row, low : high + 1, kv]
                lse[n, h, i] = scores.logsumexp(0)
    return out, lse


@pytest.fixture(autouse=True)
def _flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = SimpleNamespace(flash_attn_with_kvcache=stand_in)
    monkeypatch.setitem(sys.modules, "flash_attn", installed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("window", "causal"), KINDS)
def test_two_calls_are_one_masked_call(
    window: int | None, causal: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    layout = BlockLayout(ANCHORS, S, B, window, causal)
    query = torch.randn(2, HEADS, N * B, D, dtype=dtype)
    key, value = torch.randn(2, 2, KV_HEADS, S + N * B, D, dtype=dtype)
    found = two_call_attention(query, key, value, layout, 0.3)
    expected = scaled_dot_product_attention(
        query, key, value, attn_mask=layout.dense_mask(), scale=0.3, enable_gqa=True
    )
    close = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(found, expected.transpose(1, 2), atol=close, rtol=close)


def test_a_window_within_the_block_is_refused() -> None:
    layout = BlockLayout(ANCHORS, S, B, window=B)
    states = torch.randn(2, HEADS, S + N * B, D)
    with pytest.raises(UserError, match="sliding window wider than the block"):
        two_call_attention(states[:, :, S:], states, states, layout, 1.0)


@pytest.mark.parametrize("layer_types", [FULL, MIXED], ids=["full", "mixed"])
def test_a_rollout_on_flash_attn_is_the_rollout(layer_types: tuple[str, ...]) -> None:
    sample = make_sample(30)
    anchors = all_anchors(sample)
    window = {"sliding_window": 9}
    found = roll(make_drafter(layer_types, backend="fa", **window).eval(), sample, anchors)
    expected = roll(make_drafter(layer_types, **window).eval(), sample, anchors)
    assert torch.equal(found.endpoint, expected.endpoint)
    assert torch.equal(found.commit_pass, expected.commit_pass)
    torch.testing.assert_close(found.top_logp, expected.top_logp, atol=1e-4, rtol=1e-4)


def test_only_collection_takes_flash_attn() -> None:
    catalogue = registry(DstillOptions())
    taking = {
        mode
        for mode in DSTILL_MODES
        if "fa" in catalogue.resolve(mode).spec.capabilities.attention_backends
    }
    assert taking == {"dstill_collect"}
