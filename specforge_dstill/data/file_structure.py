"""Whether a feature file that nobody took a checksum of is sound, read to its end."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from specforge_dstill.data.feature_files import HIDDEN, SCALE, all_finite, describe, load_features
from specforge_dstill.errors import UserError, reason

#: Tensors with one row a token.
_PER_TOKEN = ("input_ids", "loss_mask", HIDDEN, SCALE, "target_last_hidden_states")


def structure_problem(path: Path) -> str | None:
    """What is wrong with a feature file as far as it tells itself, None when nothing is.

    torch.save writes a zip archive, which has a CRC of every tensor; gzip has one of the whole.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        problem = _archive_problem(content)
        if problem is not None:
            return problem
        return _tensors_problem(path, load_features(path))
    except UserError as error:
        return str(error).removeprefix(f"{path}: ").partition(";")[0]
    except Exception as error:  # a damaged archive fails in any way it likes
        return f"cannot be read ({reason(error)})"


def _archive_problem(content: bytes) -> str | None:
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return None  # reading it tells what it is instead
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        damaged = archive.testzip()
    return None if damaged is None else f"its part {damaged} does not match its CRC"


def _tensors_problem(path: Path, found: dict[str, Tensor]) -> str | None:
    if not found:
        return "holds no tensor"
    lengths = describe(path, found).lengths
    lengths = {name: lengths[name] for name in _PER_TOKEN if name in lengths}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{name} {length}" for name, length in lengths.items())
        return f"its tensors differ in length ({text})"
    for name, tensor in found.items():
        if torch.is_floating_point(tensor) and not all_finite(tensor):
            return f"its {name} hold NaN or infinite values"
    return None
