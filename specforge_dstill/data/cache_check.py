"""Checking a whole cache before anything is trained on it: structure and sizes, not contents."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from specforge_dstill.data.feature_files import FeatureInfo, inspect
from specforge_dstill.data.float8 import FLOAT8
from specforge_dstill.data.manifest import CacheManifest, read_samples
from specforge_dstill.data.markers import IDENTITY, Row
from specforge_dstill.data.sample_check import CAPTURE_AGAIN, SampleCheck, dtype_name, listed
from specforge_dstill.errors import UserError
from specforge_dstill.trajectory_store.sharding import partition

_THREADS = 8


def check_cache(
    folder: str | Path,
    *,
    required_keys: Sequence[str],
    width: int,
    layers: Sequence[int],
    max_length: int | None = None,
    vocab_size: int | None = None,
    dtype: torch.dtype | None = None,
    target_hash: str | None = None,
    target_weights: str = "",
    rank: int = 0,
    world_size: int = 1,
) -> list[FeatureInfo]:
    """Open every file of a cache (this rank's share of them) and check that it can be used.

    Sizes and tokens are compared with the capture's own list of samples; states are not read. Of
    gzipped files, which must be read whole, only the first of all is opened.

    Args:
        layers: the draft config's target layers; ``width`` is what they make of a row.
        vocab_size: the target's; None leaves tokens unchecked.
        dtype: the draft's. States of another one are a warning, float8 ones are meant so.
        target_hash, target_weights: ``config_hash`` and ``weights_fingerprint`` of the run's
            target, "" where they are unknown. Another target's cache is a warning.

    The first file with a fault, in SpecForge's order, raises UserError with its name.
    """
    from specforge.runtime.data_plane.offline_reader import list_feature_files

    folder = Path(folder)
    files = list_feature_files(str(folder))
    if not files:
        raise UserError(
            f"{folder}: no feature files there; make them with: specforge-dstill capture"
        )
    manifest = CacheManifest.read(folder) if folder.is_dir() else None
    if rank == 0 and manifest is None and (folder / IDENTITY).is_file():
        _warn(
            f"{folder}: its capture is not finished; run the same capture command again for the "
            "rest"
        )
    if manifest is not None:
        check_layers(folder, manifest, layers)
        if rank == 0:
            _compare_target(folder, manifest, target_hash, target_weights)
    wanted = SampleCheck(
        folder=folder,
        keys=tuple(required_keys),
        width=width,
        layers=tuple(layers),
        max_length=max_length,
        vocab_size=vocab_size,
        float8=inspect(files[0]).dtype == FLOAT8,
        entered=_entered(folder, manifest, files),
    )
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        opened = [file for file in files if file == files[0] or not file.endswith(".gz")]
        found = list(pool.map(wanted.check, partition(opened, world_size, rank)))
    others = {info.dtype for info in found if dtype is not None} - {dtype, FLOAT8}
    if others and rank == 0:
        names = ", ".join(sorted(dtype_name(other) for other in others))
        _warn(
            f"{folder}: its features are {names} and the draft is {dtype_name(dtype)}; they are "
            "converted as they are read"
        )
    return found


def refuse_float8(path: Path, mode: str) -> None:
    """UserError when ``path`` is a float8 feature file, which SpecForge's own modes misread.

    They would take the stored values for the states and leave the scales out.
    """
    try:
        dtype = inspect(path).dtype
    except UserError:
        return  # the mode's own reader tells what is wrong with it
    if dtype == FLOAT8:
        raise UserError(
            f"{path}: its states are float8 with scales, which --mode {mode} cannot read; train a "
            "dstill_ mode, or capture with --dtype bfloat16 into another folder"
        )


def _entered(folder: Path, manifest: CacheManifest | None, files: Sequence[str]) -> dict[str, Row]:
    """The rows of samples.jsonl by sample id; {} where there are no sizes.

    UserError when a sample of a finished capture has lost its file.
    """
    if manifest is None:
        return {}
    rows = {row["sample_id"]: row for row in read_samples(folder, manifest)}
    if len(files) < len(rows):
        first = next(name for name in rows if not (folder / name).is_file())
        raise UserError(
            f"{folder}: {len(rows) - len(files)} of {len(rows)} samples have lost their file "
            f"(first: {first}); {CAPTURE_AGAIN}"
        )
    return rows


def check_layers(folder: Path, manifest: CacheManifest, layers: Sequence[int]) -> None:
    """UserError for a cache of other target layers than the draft config's."""
    if manifest.target_layer_ids != tuple(layers):
        raise UserError(
            f"{folder}: cache has layers {listed(manifest.target_layer_ids)} of the target; the "
            f"draft config wants layers {listed(layers)}; capture again or use its draft config"
        )


def _compare_target(
    folder: Path, manifest: CacheManifest, target_hash: str | None, target_weights: str
) -> None:
    """Warn of another target, or another training of it.

    No refusal: a library's version alone can change a configuration, and a model can be saved
    again in other pieces.
    """
    pairs = {
        "configuration is not that": (manifest.target_hash, target_hash),
        "weights are not those": (manifest.target_weights or None, target_weights or None),
    }
    for what, (captured, wanted) in pairs.items():
        if None not in (captured, wanted) and captured != wanted:
            _warn(
                f"{folder}: was captured from {manifest.target}, whose {what} of this "
                "run's target; features of another target teach a drafter nothing: if it is "
                "another one, set model.target_model_path, or capture again into another folder"
            )
            return


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)
