"""Reading feature files without running code in them.

SpecForge reads its feature files with ``torch.load(weights_only=False)``, which runs whatever
code a file carries; here a file holds tensors or is refused.
"""

from __future__ import annotations

import gzip
import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specforge_dstill.data.float8 import decode_float8
from specforge_dstill.errors import UserError, reason

HIDDEN = "hidden_states"
#: What the target's LM head reads: features of DSpark drafters only.
LAST = "target_last_hidden_states"
#: Of float8 states, one float32 a token and layer.
SCALE = "hidden_states_scale"


@dataclass(frozen=True)
class FeatureInfo:
    """What one file holds: each tensor's rows, the width and dtype of hidden_states.

    ``scales`` is how many scales a token has, 0 for states that are not float8. ``anchors`` tells
    whether two neighbouring tokens within the length limit are scored.
    """

    path: str
    keys: tuple[str, ...]
    lengths: dict[str, int]
    width: int
    dtype: torch.dtype | None
    anchors: bool
    scales: int = 0


def load_features(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a feature file; float8 states come as float32. Runs no code."""
    try:
        return decoded(read_tensors(path))
    except ValueError as error:
        raise UserError(
            f"{path}: its float8 states do not fit their scales ({error}); capture it again"
        ) from error


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors as they lie in the file, memory-mapped unless it is gzipped. Runs no code."""
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
    except Exception as error:  # a damaged pickle or stream fails in any way it likes
        raise UserError(
            f"{path}: cannot be read ({reason(error)}); it is truncated or no feature file: "
            "delete it and run capture again"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise UserError(f"{path}: is not a feature file (a dictionary of tensors)")
    return found


def decoded(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """With float8 states and their scales as float32 states; other tensors as they are.

    Raises: ``ValueError`` when states and scales do not fit.
    """
    if SCALE not in found:
        return found
    rest = {name: tensor for name, tensor in found.items() if name != SCALE}
    return {**rest, HIDDEN: decode_float8(found[HIDDEN], found[SCALE])}


def all_finite(states: Tensor) -> bool:
    """Whether no element is NaN or infinite, in one pass without a temporary."""
    if states.numel() == 0:
        return True
    return bool(torch.isfinite(torch.stack(torch.aminmax(states))).all())


def require_finite(sample: str | Path, states: Tensor) -> None:
    """Raises: ``UserError`` naming the sample when its states are not all finite."""
    if not all_finite(states):
        raise not_finite([str(sample)])


def not_finite(samples: Sequence[str]) -> UserError:
    """What to say of samples with states that are NaN or infinite."""
    more = f" (and {len(samples) - 1} more of the batch)" if len(samples) > 1 else ""
    return UserError(
        f"{samples[0]}{more}: its {HIDDEN} hold NaN or infinite values, which would spread to "
        "every weight; specforge-dstill verify CACHE names such files, with --repair it moves them "
        "out of the cache"
    )


def inspect(path: str | Path, *, max_length: int | None = None) -> FeatureInfo:
    """The structure of a feature file; its states are not read, unless it is gzipped."""
    found = read_tensors(path)
    return describe(path, found, max_length=max_length)


def describe(
    path: str | Path, found: dict[str, Tensor], *, max_length: int | None = None
) -> FeatureInfo:
    """The structure of a file's tensors."""
    hidden, mask, scale = found.get(HIDDEN), found.get("loss_mask"), found.get(SCALE)
    scored = None if mask is None or mask.dim() != 1 else mask[:max_length].bool()
    return FeatureInfo(
        path=str(path),
        keys=tuple(found),
        lengths={name: _rows(tensor) for name, tensor in found.items()},
        width=hidden.shape[-1] if hidden is not None and hidden.dim() >= 2 else 0,
        dtype=None if hidden is None else hidden.dtype,
        anchors=scored is not None and bool((scored[:-1] & scored[1:]).any()),
        scales=scale.shape[-1] if scale is not None and scale.dim() == 2 else 0,
    )


def _rows(tensor: Tensor) -> int:
    """Tokens in a tensor of shape [S], [S, W] or SpecForge's [1, S, W]."""
    return tensor.shape[1] if tensor.dim() == 3 else tensor.shape[0] if tensor.dim() else 0
