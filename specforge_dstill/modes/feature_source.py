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

from specforge_dstill.data.feature_files import HIDDEN, LAST, SCALE, all_finite, decoded, inspect
from specforge_dstill.data.float8 import FLOAT8

FEATURES = ("input_ids", "loss_mask", HIDDEN)

Sample = dict[str, Tensor]


def features_of(backbone: str) -> tuple[str, ...]:
    """What a ``dflash`` or ``dspark`` drafter is trained on."""
    return (*FEATURES, LAST) if backbone == "dspark" else FEATURES


@dataclass(frozen=True)
class NamedReader:
    """SpecForge's reader with sample ids that survive a change of run, order or folder."""

    folder: str
    reader: OfflineManifestReader

    def read(self, limit: int | None = None) -> list[SampleRef]:
        """One reference a feature file; to its scales, too, when the cache is float8."""
        refs = self.reader.read(limit)
        if refs and inspect(_path(refs[0].feature_store_uri)).dtype == FLOAT8:
            refs = [replace(ref, feature_keys={**ref.feature_keys, SCALE: SCALE}) for ref in refs]
        return [
            replace(ref, sample_id=relative_id(self.folder, ref.feature_store_uri)) for ref in refs
        ]


def relative_id(folder: str, uri: str) -> str:
    """``file:///cache/data/0.ckpt`` in ``/cache`` -> ``data/0.ckpt``, with forward slashes."""
    path, root = _path(uri), f"{Path(folder).absolute()}{os.sep}"
    # The listing of a folder gives names that start with it; relpath is ten times slower.
    inside = path[len(root) :] if path.startswith(root) else os.path.relpath(path, root)
    return inside.replace(os.sep, "/")


def _path(uri: str) -> str:
    return uri.removeprefix("file://")


def reader_for(mode: str, *, backbone: str = "dflash") -> Callable[..., NamedReader]:
    """The ``build_reader`` factory of a mode, in SpecForge's signature."""
    keys = features_of(backbone)

    def build(
        hidden_states_path: str, *, run_id: str, ttt_length: int, max_len: int
    ) -> NamedReader:
        reader = OfflineManifestReader(
            hidden_states_path,
            run_id=run_id,
            strategy=mode,
            feature_keys=keys,
            target_repr="hidden_state" if LAST in keys else None,
            ttt_length=ttt_length,
            max_len=max_len,
        )
        return NamedReader(folder=hidden_states_path, reader=reader)

    return build


def normalizer_for(build: Callable[..., Callable[[Sample], Sample]]) -> Callable[..., Any]:
    """The ``build_normalizer`` factory: SpecForge's, with float8 states decoded before it.

    It runs in the loader's worker threads.
    """

    def build_decoding(max_len: int, **topology: Any) -> Callable[[Sample], Sample]:
        normalize = build(max_len, **topology)

        def decode_and_normalize(raw: Sample) -> Sample:
            if SCALE in raw:
                raw = decoded({name: tensor[:max_len] for name, tensor in raw.items()})
            return normalize(raw)

        return decode_and_normalize

    return build_decoding


def collator(
    build: Callable[[], Callable[[Sequence[Sample]], dict[str, Any]]] = build_collator,
) -> Callable[[Sequence[Sample]], dict[str, Any]]:
    """SpecForge's padding, plus ``lengths`` [b], where each sample ends, and ``finite`` [b].

    ``build`` makes the padding of a backbone's features. ``finite`` is False where a sample's
    states hold NaN or infinity: looked for here, in the loader's worker threads, and told where
    the sample's name is known (:func:`samples_of`).
    """
    pad = build()

    def collate(features: Sequence[Sample]) -> dict[str, Any]:
        lengths = torch.tensor([feature["input_ids"].shape[1] for feature in features])
        finite = torch.tensor([_finite(feature) for feature in features])
        return {**pad(features), "lengths": lengths, "finite": finite}

    return collate


def _finite(feature: Sample) -> bool:
    return all(all_finite(feature[name]) for name in (HIDDEN, LAST) if name in feature)
