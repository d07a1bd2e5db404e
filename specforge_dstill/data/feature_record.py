"""The bytes of one feature file: made from a sample's states, and told from damaged ones."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.data.capture_transformers import Features
from specforge_dstill.data.chat import TokenSample
from specforge_dstill.data.feature_files import HIDDEN, SCALE, all_finite, read_tensors
from specforge_dstill.data.float8 import FLOAT8, encode_float8
from specforge_dstill.errors import UserError


@dataclass(frozen=True)
class RecordFormat:
    """How a capture stores a sample.

    ``layout`` is SpecForge's OfflineCaptureLayout, ``layers`` how many make ``width``, ``keys``
    the tensors of a file in order, ``dtype`` that of the states.
    """

    layout: Any
    layers: int
    width: int
    keys: tuple[str, ...]
    dtype: torch.dtype

    def record(self, sample: TokenSample, found: Features) -> dict[str, Tensor] | None:
        """The tensors of a file; None when the states are not finite in its dtype."""
        states = {"aux_hidden_states": found.hidden_states}
        if found.last is not None:
            states["last_hidden_states"] = found.last
        if self.dtype != FLOAT8:  # whose scales fit any finite state
            states = {name: tensor.to(self.dtype) for name, tensor in states.items()}
        if not all(map(all_finite, states.values())):
            return None
        made: dict[str, Tensor] = self.layout.materialize(
            {"input_ids": sample.input_ids.long(), "loss_mask": sample.loss_mask.long(), **states}
        )
        if self.dtype == FLOAT8:
            made[HIDDEN], made[SCALE] = encode_float8(made[HIDDEN], layers=self.layers)
        return made

    def whole(self, path: Path, sample: TokenSample) -> bytes | None:
        """The content of a file that no marker vouches for, if it holds ``sample`` as written.

        Its states cannot be known, but torch.save puts a CRC beside every tensor: what was read is
        written again, to memory, and must give the file's own bytes. None when it does not.
        """
        try:
            found, content = read_tensors(path), path.read_bytes()
        except (UserError, OSError):
            return None
        same = (
            tuple(found) == self.keys
            and torch.equal(found["input_ids"], sample.input_ids.long())
            and torch.equal(found["loss_mask"], sample.loss_mask.long())
            and found[HIDDEN].shape == (len(sample), self.width)
            and found[HIDDEN].dtype == self.dtype
        )
        return content if same and record_bytes(found) == content else None


def record_bytes(record: dict[str, Tensor]) -> memoryview:
    """A file's content. The same tensors give the same bytes, with one version of torch."""
    buffer = io.BytesIO()  # so that a full disk is an OSError of ours, not torch's
    torch.save({name: tensor.contiguous().clone() for name, tensor in record.items()}, buffer)
    return buffer.getbuffer()
