"""Hidden states of a target through SpecForge's own SGLang capture (needs a GPU)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import nn

from specforge_dstill.data.capture_transformers import Features
from specforge_dstill.data.chat import TokenSample
from specforge_dstill.errors import UserError

#: What torchrun would set, for a plain start.
_ONE_PROCESS = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


class SglangExtractor:
    """Hands batches to ``specforge.offline_capture``.

    Its batches are rectangular and it runs the padding too; padding is on the right, so the
    states of the real tokens do not see it, and it is cut off here.
    """

    def __init__(self, capture: Any, *, with_last: bool) -> None:
        self._capture, self._with_last = capture, with_last

    def __call__(self, samples: Sequence[TokenSample]) -> list[Features]:
        """Features of each sample."""
        ids = nn.utils.rnn.pad_sequence([s.input_ids for s in samples], batch_first=True)
        loss = nn.utils.rnn.pad_sequence([s.loss_mask for s in samples], batch_first=True)
        lengths = torch.tensor([len(s) for s in samples])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        found = self._capture.capture(
            input_ids=ids.cuda() if torch.cuda.is_available() else ids,
            attention_mask=mask,
            loss_mask=loss,
        )
        return [
            Features(
                found.hidden_states[row, : len(sample)].clone().cpu(),
                found.last_hidden_states[row, : len(sample)].clone().cpu()
                if self._with_last
                else None,
            )
            for row, sample in enumerate(samples)
        ]


def load_sglang(
    target: str,
    layers: Sequence[int],
    *,
    capture_method: str,
    dtype: torch.dtype,
    tp_size: int,
    trust_remote_code: bool,
    with_last: bool,
    engine_options: dict[str, Any],
) -> SglangExtractor:
    """Start SpecForge's capture engine; ``engine_options`` go to SGLang's ServerArgs."""
    try:
        import_module("sglang")  # SpecForge would miss it only after starting its ranks
        from specforge.distributed import init_distributed
        from specforge.offline_capture import load_offline_capture

        for name, value in _ONE_PROCESS.items():
            os.environ.setdefault(name, value)
        init_distributed(tp_size=tp_size)
        capture = load_offline_capture(
            target, torch_dtype=dtype, trust_remote_code=trust_remote_code, **engine_options
        )
    except ImportError as error:
        raise UserError(
            f"--backend sglang needs SGLang and a GPU ({error}); use --backend transformers"
        ) from error
    capture.set_capture_layers(list(layers), capture_method=capture_method)
    return SglangExtractor(capture, with_last=with_last)
