"""A folder of the target's greedy answers, each with its features, that only grows.

A file is found by its prompt's token ids, so that new prompts, other limits and other data sets
only add files. Answers made with other settings are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from specforge_dstill.data import jsonl
from specforge_dstill.data.manifest import differences
from specforge_dstill.errors import UserError
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
        """Keep an answer: temporary name, flush to disk, rename."""
        from safetensors.torch import save

        tensors = {"input_ids": input_ids, "hidden_states": hidden_states.contiguous()}
        content = save(tensors, metadata={"start": str(len(prompt_ids))})
        path = self._path(prompt_ids)
        temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
        try:
            with temporary.open("wb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(path)
        except OSError as error:
            jsonl.remove_quietly(temporary)
            raise UserError(jsonl.disk_message(path, error)) from error

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
    path = folder / SETTINGS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            jsonl.write_text(path, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
        old = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(jsonl.disk_message(path, error)) from error
    except ValueError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    changed = differences(_compared(old), _compared(settings))
    if changed:
        raise UserError(
            f"{folder}: holds answers made with other settings ({changed}); choose another "
            "folder with --answers"
        )


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in _ONLY_RECORDED}
