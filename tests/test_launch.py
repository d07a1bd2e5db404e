"""One training process as a rank: how it leaves the group of ranks."""

from __future__ import annotations

import pytest
import specforge.distributed
import torch.distributed
from specforge.config import TrainingConfig

from specforge_dstill.launch import joined


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by a word when the group, which is none, is left."""
    words: list[str] = []
    monkeypatch.setattr(specforge.distributed, "init_distributed", lambda **_: None)
    monkeypatch.setattr(specforge.distributed, "destroy_distributed", lambda: words.append("left"))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    return words


@pytest.mark.parametrize(("backend", "leaves"), [("gloo", True), ("nccl", False)])
def test_after_an_error_a_rank_leaves_only_where_it_need_not_wait(
    left: list[str], monkeypatch: pytest.MonkeyPatch, backend: str, leaves: bool
) -> None:
    """NCCL's end waits for ranks that wait for this one: its error would never be shown."""
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
    with pytest.raises(MemoryError), joined(TrainingConfig()):
        raise MemoryError
    assert left == ["left"] * leaves
    left.clear()
    with joined(TrainingConfig()):
        assert left == []
    assert left == ["left"]
