"""Writing an exported drafter: the folder is complete or absent, and never written over."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from specforge_dstill.errors import UserError
from specforge_dstill.export.draft_files import CONFIG, WEIGHTS
from specforge_dstill.files import (
    json_bytes,
    make_folder,
    sync_folder,
    temporary_path,
    write_atomically,
    writing,
)

PROVENANCE = "dstill.json"


def check_free(folder: Path) -> None:
    """UserError when there is something at ``folder`` already."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise UserError(
            f"{folder}: is there already, and an export never writes over one; give another "
            "--output-dir, or remove it first"
        )


def write_folder(
    folder: Path,
    *,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    provenance: Mapping[str, Any],
) -> None:
    """Write a drafter's folder. UserError when it is there already or cannot be written."""
    check_free(folder)
    make_folder(folder.parent)
    with _beside(folder) as temporary:
        # Tensors of a checkpoint may share memory, or be mapped from its file.
        own = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
        write_atomically(temporary / WEIGHTS, save(own, metadata={"format": "pt"}))
        write_atomically(temporary / PROVENANCE, json_bytes(dict(provenance)))
        write_atomically(temporary / CONFIG, json_bytes(dict(config)))
        check_free(folder)
        with writing(folder):
            temporary.replace(folder)
    sync_folder(folder.parent)


@contextlib.contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A folder beside, to be renamed; gone afterwards."""
    temporary = temporary_path(folder)
    make_folder(temporary)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
