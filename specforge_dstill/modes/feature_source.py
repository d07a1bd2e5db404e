"""Reading a feature cache so that a sample keeps its name.

SpecForge numbers samples as it lists them. Trajectories belong to a sample, and draws are keyed
by it, so our modes name a sample by its file's path relative to the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from specforge.algorithms.common.dflash_family_data import build_collator
from specforge.runtime.contracts import SampleRef
from specforge.runtime.data_plane.offline_reader import OfflineManifestReader
from torch import Tensor

FEATURES = ("input_ids", "loss_mask", "hidden_states")


@dataclass(frozen=True)
class NamedReader:
    """SpecForge's reader with sample ids that survive a change of run, order or folder."""

    folder: str
    reader: OfflineManifestReader

    def read(self, limit: int | None = None) -> list[SampleRef]:
        return [
            replace(ref, sample_id=relative_id(self.folder, ref.feature_store_uri))
            for ref in self.reader.read(limit)
        ]


def relative_id(folder: str, uri: str) -> str:
    """``file:///cache/data/0.ckpt`` in ``/cache`` -> ``data/0.ckpt``, with forward slashes."""
    path = uri.removeprefix("file://")
    return os.path.relpath(path, Path(folder).absolute()).replace(os.sep, "/")


def reader_for(mode: str) -> Callable[..., NamedReader]:
    """The ``build_reader`` factory of a mode, in SpecForge's signature."""

    def build(
        hidden_states_path: str, *, run_id: str, ttt_length: int, max_len: int
    ) -> NamedReader:
        reader = OfflineManifestReader(
            hidden_states_path,
            run_id=run_id,
            strategy=mode,
            feature_keys=FEATURES,
            target_repr=None,
            ttt_length=ttt_length,
            max_len=max_len,
        )
        return NamedReader(folder=hidden_states_path, reader=reader)

    return build


def collator() -> Callable[[Sequence[dict[str, Tensor]]], dict[str, Any]]:
    """SpecForge's padding, plus ``lengths`` [b]: where each sample ends."""
    pad = build_collator()

    def collate(features: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
        lengths = torch.tensor([feature["input_ids"].shape[1] for feature in features])
        return {**pad(features), "lengths": lengths}

    return collate
