"""Whether one feature file is what a run wants, and what its capture entered."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specforge_dstill.data.feature_files import HIDDEN, SCALE, FeatureInfo, describe, read_tensors
from specforge_dstill.data.float8 import FLOAT8
from specforge_dstill.data.markers import Row
from specforge_dstill.errors import UserError
from specforge_dstill.files import reading
from specforge_dstill.token_hash import token_hash

CAPTURE_AGAIN = "run the same capture command again, it captures what is missing"


@dataclass(frozen=True)
class SampleCheck:
    """What every file of a cache must hold.

    ``keys`` are the tensors that a run reads, ``width`` that of hidden_states, made by ``layers``.
    ``vocab_size`` is the target's (None: any token will do). ``float8`` tells which kind of states
    the cache holds, ``entered`` has the capture's rows by sample id ({} when there are none).
    """

    folder: Path
    keys: tuple[str, ...]
    width: int
    layers: tuple[int, ...]
    max_length: int | None
    vocab_size: int | None
    float8: bool
    entered: dict[str, Row]

    def check(self, path: str) -> FeatureInfo:
        """The file's structure. Raises: ``UserError`` that names the file and its fault."""
        row = self._row(path)
        if row is not None:
            _check_size(path, row["bytes"])
        found = read_tensors(path)
        info = describe(path, found, max_length=self.max_length)
        self._check_keys(info)
        self._check_states(info)
        self._check_lengths(info)
        self._check_tokens(info, found["input_ids"])
        if row is not None and token_hash(found["input_ids"]) != row["token_hash"]:
            raise UserError(
                f"{path}: has other tokens than were captured; every changed file is named by: "
                f"{self._verify}"
            )
        return info

    @property
    def _verify(self) -> str:
        return f"specforge-dstill verify {self.folder}"

    def _row(self, path: str) -> Row | None:
        if not self.entered:
            return None
        name = os.path.relpath(path, self.folder.absolute()).replace(os.sep, "/")
        if name not in self.entered:
            raise UserError(
                f"{path}: is not among the samples of this capture; move it out of the cache, or "
                f"have it moved by: {self._verify} --repair"
            )
        return self.entered[name]

    def _needed(self, info: FeatureInfo) -> tuple[str, ...]:
        return (*self.keys, SCALE) if info.dtype == FLOAT8 else self.keys

    def _check_keys(self, info: FeatureInfo) -> None:
        missing = [key for key in self._needed(info) if key not in info.keys]
        if missing:
            raise UserError(
                f"{info.path}: lacks {' and '.join(map(repr, missing))} (it has "
                f"{', '.join(info.keys) or 'nothing'}); capture again with the mode you train"
            )

    def _check_states(self, info: FeatureInfo) -> None:
        if HIDDEN in self.keys and info.width != self.width:
            raise UserError(f"{info.path}: {self._width_fault(info.width)}")
        if (info.dtype == FLOAT8) != self.float8:
            kind = "float8" if self.float8 else "not float8"
            raise UserError(
                f"{info.path}: its states are {dtype_name(info.dtype)}, those of the cache's first "
                f"file are {kind}; a cache is one or the other: capture into another folder"
            )
        if self.float8 and info.scales != len(self.layers):
            raise UserError(
                f"{info.path}: has {info.scales} scales a token for {len(self.layers)} layers; "
                "capture it again"
            )

    def _check_lengths(self, info: FeatureInfo) -> None:
        lengths = {name: info.lengths[name] for name in self._needed(info)}
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise UserError(f"{info.path}: its tensors differ in length ({text}); capture it again")
        if not info.anchors:
            raise UserError(
                f"{info.path}: no two neighbouring tokens are scored{self._within()}, so no block "
                f"fits; {self._way_out()}"
            )

    def _check_tokens(self, info: FeatureInfo, tokens: Tensor) -> None:
        highest = int(tokens.max())
        if self.vocab_size is not None and highest >= self.vocab_size:
            raise UserError(
                f"{info.path}: has token {highest}, and the target's vocabulary has "
                f"{self.vocab_size}: the cache is another target's; set model.target_model_path to "
                "that one, or capture again into another folder"
            )

    def _within(self) -> str:
        return "" if self.max_length is None else f" in its first {self.max_length}"

    def _way_out(self) -> str:
        if not self.entered:
            return "delete the file"
        return "capture with this run's data.max_length into another folder"

    def _width_fault(self, found: int) -> str:
        hidden = self.width // max(1, len(self.layers))
        count, rest = divmod(found, hidden)
        plural = "layer" if count == 1 else "layers"
        makes = "" if rest or not count else f" = {count} {plural} x {hidden}"
        return (
            f"cache has width {found}{makes}; the draft config wants layers "
            f"{listed(self.layers)} = {self.width}; capture again or use its draft config"
        )


def _check_size(path: str, entered: int) -> None:
    with reading(Path(path)):
        size = Path(path).stat().st_size
    if size != entered:
        raise UserError(
            f"{path}: has {size} bytes and had {entered} when it was captured: it is truncated or "
            f"changed; {CAPTURE_AGAIN}"
        )


def dtype_name(dtype: torch.dtype | None) -> str:
    """``bfloat16`` of ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def listed(layers: Sequence[int]) -> str:
    """Layer ids for a message, ``[1,8,15]``."""
    return f"[{','.join(map(str, layers))}]"
