"""What only a GPU can show: compiled flex attention and flash-attn against the dense mask."""

from __future__ import annotations

import pytest
import torch

from specforge_dstill.modes.drafter import BlockDrafter
from tests import tiny
from tests.modes.support import (
    FULL,
    MIXED,
    all_anchors,
    make_drafter,
    make_sample,
    roll,
)

pytestmark = pytest.mark.gpu
LAYERS = pytest.mark.parametrize("layer_types", [FULL, MIXED], ids=["full", "mixed"])
# flex attention and flash-attn want heads of at least 16.
SHAPE = {"head_dim": 32, "sliding_window": 9}


def on_gpu(layer_types: tuple[str, ...], backend: str, dtype: torch.dtype) -> BlockDrafter:
    return make_drafter(layer_types, backend=backend, **SHAPE).to("cuda", dtype)


@LAYERS
def test_compiled_flex_attention_and_its_gradient(layer_types: tuple[str, ...]) -> None:
    sample = {name: tensor.cuda() for name, tensor in make_sample(30).items()}
    anchors = all_anchors(sample).cuda()[None]
    blocks = torch.randint(4, tiny.VOCAB, (*anchors.shape, tiny.BLOCK_SIZE), device="cuda")
    found = []
    for backend in ("flex_attention", "eager"):
        drafter = on_gpu(layer_types, backend, torch.float32)
        states = drafter(blocks, anchors, sample["hidden_states"])
        states.sin().sum().backward()
        gradients = [weights.grad for weights in drafter.draft_model.parameters()]
        found.append([states.detach(), *gradients])
    for ours, dense in zip(*found, strict=True):
        torch.testing.assert_close(ours, dense, atol=2e-3, rtol=2e-3)  # TF32 products


@LAYERS
def test_a_rollout_on_flash_attn(layer_types: tuple[str, ...]) -> None:
    pytest.importorskip("flash_attn")
    sample = {name: tensor.cuda() for name, tensor in make_sample(30).items()}
    sample["hidden_states"] = sample["hidden_states"].bfloat16()
    anchors = all_anchors(sample).cuda()
    first, second = (
        roll(on_gpu(layer_types, backend, torch.bfloat16).eval(), sample, anchors, steps=1)
        for backend in ("fa", "eager")
    )
    # One pass, so that a near tie cannot send the two different ways.
    torch.testing.assert_close(
        first.top_logp.sort(-1).values, second.top_logp.sort(-1).values, atol=0.05, rtol=0.05
    )
