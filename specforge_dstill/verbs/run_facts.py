"""What commands ask of a run file: its feature cache, and the size of its drafter's blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specforge_dstill.data.draft_config import resolve_draft
from specforge_dstill.data.manifest import CacheManifest
from specforge_dstill.errors import UserError
from specforge_dstill.maths.block_shape import BlockShape
from specforge_dstill.runfile import RunFile


def feature_cache(run: RunFile) -> CacheManifest | None:
    """The manifest of the run file's feature cache, None where there is none."""
    folder = run.config.data.hidden_states_path
    return CacheManifest.read(Path(folder)) if folder else None


def cache_settings(cache: CacheManifest | None) -> dict[str, Any]:
    """How the text that drafters were trained on was formatted; {} where that is unknown."""
    if cache is None:
        return {}
    return {
        "chat_template": cache.chat_template_hash,
        "template_kwargs": cache.template_kwargs,
    }


def block_size(run_file: RunFile) -> int:
    """Positions of a block of the run's drafter. UserError for a draft config that has none."""
    try:
        return BlockShape.of(resolve_draft(run_file.config).to_dict()).positions
    except UserError as error:
        raise UserError(f"{run_file.path}: {error}") from error
