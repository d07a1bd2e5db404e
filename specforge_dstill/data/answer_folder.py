"""A folder of the target's greedy answers, each with its features, that only grows.

A file is found by its prompt's token ids, so that new prompts, other limits and other data sets
only add files. Answers made with other settings are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from specforge_dstill.data.settings import claim_settings, differences
from specforge_dstill.errors import UserError
from specforge_dstill.files import make_folder, write_atomically
from specforge_dstill.token_hash import token_hash

SETTINGS = "settings.json"
#: Recorded, not compared: where the target lay (its weights are compared), and what made the
#: first of the answers.
_ONLY_RECORDED = ("target", "versions")


@dataclass(frozen=True)
class StoredAnswer:
    """An answer in the folder: ``input_ids`` [S] of prompt and answer, ``start`` of the answer."""

    path: Path
    input_ids: Tensor
    start: int

    def features(self) -> Tensor:
        """The target's states, [S, layers * H]; read from the disk at each call."""
        return _read(self.path)[0]["hidden_states"]


class AnswerFolder:
    """Answers made with the same settings.

    Raises:
        UserError: the folder holds answers made with other settings, or cannot be written.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        _claim(folder, json.loads(json.dumps(settings)))

    def get(self, prompt_ids: Sequence[int]) -> StoredAnswer | None:
        """The answer to a prompt, None if there is none yet."""
        path = self._path(prompt_ids)
        if not path.is_file():
            return None
        tensors, start = _read(path, names=("input_ids",))
        return StoredAnswer(path, tensors["input_ids"], start)

    def put(self, prompt_ids: Sequence[int], input_ids: Tensor, hidden_states: Tensor) -> None:
        """Keep an answer."""
        from safetensors.torch import save

        tensors = {"input_ids": input_ids, "hidden_states": hidden_states.contiguous()}
        content = save(tensors, metadata={"start": str(len(prompt_ids))})
        write_atomically(self._path(prompt_ids), content)

    def _path(self, prompt_ids: Sequence[int]) -> Path:
        return self._folder / f"{token_hash(list(prompt_ids))}.safetensors"


def _read(path: Path, names: Sequence[str] | None = None) -> tuple[dict[str, Tensor], int]:
    """Tensors of an answer's file (all, or those named) and where the answer starts."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            start = int(file.metadata()["start"])
            return {name: file.get_tensor(name) for name in names or file.keys()}, start
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: is no whole answer ({error}); delete it and run the same command again"
        ) from error


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """Record what the folder's answers are, or refuse one that holds others."""
    make_folder(folder)
    held = claim_settings(folder / SETTINGS, settings)
    changed = differences(held, settings, ignored=_ONLY_RECORDED)
    if changed:
        raise UserError(
            f"{folder}: holds answers made with other settings ({changed}); choose another "
            "folder with --answers"
        )
