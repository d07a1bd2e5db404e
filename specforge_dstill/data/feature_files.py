"""Reading feature files without running code in them, and checking a whole cache at once.

SpecForge reads its feature files with ``torch.load(weights_only=False)``, which runs whatever
code a file carries; here a file holds tensors or is refused.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specforge_dstill.data import jsonl
from specforge_dstill.data.capture_core import IDENTITY
from specforge_dstill.data.manifest import SAMPLES, CacheManifest
from specforge_dstill.errors import UserError, reason

HIDDEN = "hidden_states"
#: Tensors with one row a token, beside the ids and the mask.
_STATES = (HIDDEN, "target_last_hidden_states")
_THREADS = 8


@dataclass(frozen=True)
class FeatureInfo:
    """What one file holds: each tensor's rows, the width and dtype of hidden_states.

    ``anchors`` tells whether two neighbouring tokens within the length limit are scored.
    """

    path: str
    keys: tuple[str, ...]
    lengths: dict[str, int]
    width: int
    dtype: torch.dtype | None
    anchors: bool


def load_features(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a feature file, memory-mapped unless it is gzipped. Runs no code."""
    path = Path(path)
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as handle:
                found = torch.load(io.BytesIO(handle.read()), weights_only=True)
        else:
            found = torch.load(path, weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path}: holds more than tensors; reading it would run code in it, so it is refused; "
            "capture it again"
        ) from error
    except (OSError, EOFError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read ({reason(error)}); it is truncated or no feature file: "
            "delete it and run capture again"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise UserError(f"{path}: is not a feature file (a dictionary of tensors)")
    return found


def inspect(path: str | Path, *, max_length: int | None = None) -> FeatureInfo:
    """The structure of a feature file; its states are not read from the disk."""
    found = load_features(path)
    hidden, mask = found.get(HIDDEN), found.get("loss_mask")
    scored = None if mask is None or mask.dim() != 1 else mask[:max_length].bool()
    return FeatureInfo(
        path=str(path),
        keys=tuple(found),
        lengths={name: _rows(tensor) for name, tensor in found.items()},
        width=hidden.shape[-1] if hidden is not None and hidden.dim() >= 2 else 0,
        dtype=None if hidden is None else hidden.dtype,
        anchors=scored is not None and bool((scored[:-1] & scored[1:]).any()),
    )


def check_cache(
    folder: str | Path,
    *,
    required_keys: Sequence[str],
    width: int,
    layers: Sequence[int],
    max_length: int | None = None,
    dtype: torch.dtype | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> list[FeatureInfo]:
    """Open every file of a cache (this rank's share of them) and check that it can be used.

    ``layers`` are the draft config's target layers, ``width`` what they make of a row. The first
    file with a fault, in SpecForge's order, raises UserError with its name; states of another
    dtype than ``dtype`` are a warning.
    """
    from specforge.runtime.data_plane.offline_reader import list_feature_files

    files = list_feature_files(str(folder))
    if not files:
        raise UserError(
            f"{folder}: no feature files there; make them with: specforge-dstill capture"
        )
    manifest = CacheManifest.read(Path(folder)) if Path(folder).is_dir() else None
    if manifest is None and (Path(folder) / IDENTITY).is_file():
        warnings.warn(
            f"{folder}: its capture is not finished; run the same capture command again for the "
            "rest",
            stacklevel=2,
        )
    if manifest is not None:
        _check_layers(folder, manifest, layers)
        _check_all_there(Path(folder), manifest, files)
    wanted = _Wanted(tuple(required_keys), width, tuple(layers), max_length)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        found = list(pool.map(wanted.check, files[rank::world_size]))
    others = {info.dtype for info in found if dtype is not None and info.dtype != dtype}
    if others and rank == 0:
        names = ", ".join(sorted(str(other).removeprefix("torch.") for other in others))
        warnings.warn(
            f"{folder}: its features are {names} and the draft is "
            f"{str(dtype).removeprefix('torch.')}; they are converted as they are read",
            stacklevel=2,
        )
    return found


def _check_all_there(folder: Path, manifest: CacheManifest, files: Sequence[str]) -> None:
    """UserError when a sample of a finished capture has lost its file."""
    if len(files) >= manifest.samples:
        return
    listed = (row["sample_id"] for _, row in jsonl.read_objects(folder / SAMPLES))
    first = next((name for name in listed if not (folder / name).is_file()), "?")
    raise UserError(
        f"{folder}: {manifest.samples - len(files)} of {manifest.samples} samples have lost their "
        f"file (first: {first}); run the same capture command again, it captures what is missing"
    )


@dataclass(frozen=True)
class _Wanted:
    keys: tuple[str, ...]
    width: int
    layers: tuple[int, ...]
    max_length: int | None

    def check(self, path: str) -> FeatureInfo:
        info = inspect(path, max_length=self.max_length)
        missing = [key for key in self.keys if key not in info.keys]
        if missing:
            raise UserError(
                f"{path}: lacks {' and '.join(map(repr, missing))} (it has "
                f"{', '.join(info.keys) or 'nothing'}); capture again with the mode you train"
            )
        if HIDDEN in self.keys and info.width != self.width:
            raise UserError(f"{path}: {self._width_fault(info.width)}")
        lengths = {name: info.lengths[name] for name in self.keys}
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise UserError(f"{path}: its tensors differ in length ({text}); capture it again")
        if not info.anchors:
            raise UserError(
                f"{path}: no two neighbouring tokens are scored{self._within()}, so no block fits; "
                "delete the file"
            )
        return info

    def _within(self) -> str:
        return "" if self.max_length is None else f" in its first {self.max_length}"

    def _width_fault(self, found: int) -> str:
        hidden = self.width // max(1, len(self.layers))
        count, rest = divmod(found, hidden)
        plural = "layer" if count == 1 else "layers"
        makes = "" if rest or not count else f" = {count} {plural} x {hidden}"
        return (
            f"cache has width {found}{makes}; the draft config wants layers "
            f"{_listed(self.layers)} = {self.width}; capture again or use its draft config"
        )


def _check_layers(folder: str | Path, manifest: CacheManifest, layers: Sequence[int]) -> None:
    if manifest.target_layer_ids != tuple(layers):
        raise UserError(
            f"{folder}: cache has layers {_listed(manifest.target_layer_ids)} of the target; the "
            f"draft config wants layers {_listed(layers)}; capture again or use its draft config"
        )


def _rows(tensor: Tensor) -> int:
    """Tokens in a tensor of shape [S], [S, W] or SpecForge's [1, S, W]."""
    return tensor.shape[1] if tensor.dim() == 3 else tensor.shape[0] if tensor.dim() else 0


def _listed(layers: Sequence[int]) -> str:
    return f"[{','.join(map(str, layers))}]"
