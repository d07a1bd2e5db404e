"""The answers in a feature cache as an evaluation replays them: no target is loaded for them.

For targets that do not fit one device: a server gives their greedy answers, SGLang captures the
features, and the drafter then needs no more of the target than its embeddings and head.

Shapes: S sequence, W feature width.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from specforge_dstill.checksums import sha256_of
from specforge_dstill.data.feature_files import HIDDEN, load_features, read_tensors
from specforge_dstill.data.manifest import CacheManifest, read_samples
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.replay import Answer


@dataclass(frozen=True)
class CapturedAnswers:
    """A finished capture of greedy answers.

    Attributes:
        rows: of its samples.jsonl, a conversation each.
    """

    folder: Path
    manifest: CacheManifest
    rows: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, folder: Path, *, limit: int | None = None) -> CapturedAnswers:
        """Those of the first ``limit`` conversations.

        Raises: ``UserError`` for no finished capture, or one of answers that were drawn.
        """
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; make it with: specforge-dstill capture")
        manifest = CacheManifest.read(folder)
        if manifest is None:
            raise UserError(
                f"{folder}: holds no finished capture; run its capture command, again if it was "
                "stopped"
            )
        _check_greedy(folder, manifest)
        return cls(folder, manifest, tuple(read_samples(folder, manifest)[:limit]))

    def answers(self) -> list[Answer]:
        """Each scored span of each sample; names are the conversations' ids, then id/2, id/3, …

        An answer without text has no span, and the next one has its number.

        Raises: ``UserError`` for a file whose bytes are not those that were captured.
        """
        found = []
        for row in self.rows:
            path = self.folder / row["sample_id"]
            if sha256_of(path) != row["sha256"]:
                raise UserError(
                    f"{path} does not match its checksum; set it aside with: specforge-dstill "
                    f"verify {self.folder} --repair, and run the same capture command again"
                )
            tensors = read_tensors(path)  # memory-mapped: the states stay on the disk
            input_ids = tensors["input_ids"].flatten()
            for turn, (start, end) in enumerate(scored_spans(tensors["loss_mask"]), start=1):
                name = row["id"] if turn == 1 else f"{row['id']}/{turn}"
                found.append(Answer(name, input_ids[:end], start, partial(_states, path, end)))
        return found


def scored_spans(loss_mask: Tensor) -> list[tuple[int, int]]:
    """First position, and the one after the last, of each run of scored tokens. [S] or [1, S]."""
    spans, position = [], 0
    for scored, run in groupby((loss_mask.flatten() > 0).tolist()):
        length = len(list(run))
        if scored:
            spans.append((position, position + length))
        position += length
    return spans


def _states(path: Path, end: int) -> Tensor:
    """[end, W]."""
    return load_features(path)[HIDDEN].flatten(end_dim=-2)[:end]


def _check_greedy(folder: Path, manifest: CacheManifest) -> None:
    """UserError for drawn answers: what a drafter must agree with is the target's greedy one."""
    temperature = manifest.generation.get("temperature")
    if temperature is None:
        warnings.warn(
            f"{folder}: it is not known how its answers were made; replay is exact for greedy "
            "answers alone",
            stacklevel=3,
        )
    elif temperature != 0:
        raise UserError(
            f"{folder}: its answers were drawn at temperature {temperature:g}, and replay walks "
            "greedy ones: make them with regenerate --temperature 0, then capture them"
        )
