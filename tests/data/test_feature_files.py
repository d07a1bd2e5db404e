from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specforge_dstill.data.feature_files import (
    HIDDEN,
    SCALE,
    FeatureInfo,
    all_finite,
    inspect,
    load_features,
    read_tensors,
)
from specforge_dstill.data.float8 import FLOAT8, decode_float8, encode_float8
from specforge_dstill.errors import UserError

from .caches import KEYS, record, save


def test_inspect(tmp_path: Path) -> None:
    path = save(tmp_path, "a.ckpt", record())
    assert inspect(path) == FeatureInfo(
        path=str(path),
        keys=KEYS,
        lengths={"input_ids": 6, "loss_mask": 6, "hidden_states": 6},
        width=8,
        dtype=torch.float32,
        anchors=True,
    )
    assert not inspect(path, max_length=4).anchors


def test_float8_states_come_decoded(tmp_path: Path) -> None:
    states = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    values, scales = encode_float8(states, layers=2)
    path = save(tmp_path, "a.ckpt", record(hidden_states=values, hidden_states_scale=scales))
    raw = read_tensors(path)
    assert raw[HIDDEN].dtype == FLOAT8
    assert torch.equal(raw[SCALE], scales)
    found = load_features(path)
    assert list(found) == list(KEYS)
    assert found[HIDDEN].dtype == torch.float32
    assert torch.equal(found[HIDDEN], decode_float8(values, scales))
    info = inspect(path)
    assert (info.dtype, info.width, info.scales) == (FLOAT8, 8, 2)


def test_float8_states_without_fitting_scales(tmp_path: Path) -> None:
    values, scales = encode_float8(torch.ones(6, 8), layers=2)
    path = save(tmp_path, "a.ckpt", record(hidden_states=values, hidden_states_scale=scales[:-1]))
    with pytest.raises(UserError, match=r"a.ckpt: its float8 states do not fit their scales"):
        load_features(path)


def test_all_finite() -> None:
    states = torch.randn(5, 7)
    assert all_finite(states)
    assert all_finite(states[:0])
    for bad in ("nan", "inf", "-inf"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            broken = states.to(dtype)
            broken[3, 6] = float(bad)
            assert not all_finite(broken)
