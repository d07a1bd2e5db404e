"""What is in the files that a run names: it may change while their names stay."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specforge_dstill.checksums import json_sha256, sha256_of
from specforge_dstill.data.draft_file import DraftSource, draft_path
from specforge_dstill.data.manifest import CacheManifest
from specforge_dstill.data.target_identity import weights_fingerprint
from specforge_dstill.errors import UserError
from specforge_dstill.runfile import RunFile


@dataclass(frozen=True)
class Inputs:
    """What a run file names.

    Attributes:
        draft: ``model.draft_model_config``.
        target: ``model.target_model_path``.
        cache: ``data.hidden_states_path``.
        held_out: ``data.eval_hidden_states_path``.
    """

    draft: str
    target: str
    cache: str
    held_out: str

    @classmethod
    def of(cls, run: RunFile) -> Inputs:
        """Those of a run file; "" for what it does not name."""
        model, data = run.config.model, run.config.data
        return cls(
            draft=model.draft_model_config or "",
            target=model.target_model_path or "",
            cache=data.hidden_states_path or "",
            held_out=data.eval_hidden_states_path or "",
        )

    def contents(self) -> dict[str, Any]:
        """JSON values, of each input by what of it is told.

        Without what is not known: of files that are not there or cannot be read, which trainings
        tell; of models on the Hub; of caches without a manifest. A large target is not read whole.
        """
        return {
            f"{key}'s {part}": value
            for key, parts in (
                ("model.draft_model_config", _of_draft(self.draft)),
                ("model.target_model_path", _of_target(self.target)),
                ("data.hidden_states_path", _of_cache(self.cache)),
                ("data.eval_hidden_states_path", _of_cache(self.held_out)),
            )
            for part, value in parts.items()
        }


def prompt_hashes(prompts: Mapping[str, str | None]) -> dict[str, str]:
    """SHA-256 of those prompts that are in files, by data set."""
    files = {name: Path(source) for name, source in prompts.items() if source is not None}
    return {name: sha256_of(path) for name, path in files.items() if path.is_file()}


def _of_draft(name: str) -> dict[str, str]:
    path = draft_path(name) if name else None
    if path is None:
        return {}
    with suppress(UserError):
        # Of what it says: how it is laid out changes nothing.
        return {"sha256": json_sha256(DraftSource(path).read())}
    return {}


def _of_target(name: str) -> dict[str, str]:
    weights = weights_fingerprint(name) if name else None
    if weights is None:
        return {}
    config = Path(name, "config.json")
    return {"weights": weights, **({"config": sha256_of(config)} if config.is_file() else {})}


def _of_cache(name: str) -> dict[str, Any]:
    with suppress(UserError):
        manifest = CacheManifest.read(Path(name)) if name else None
        return {} if manifest is None else manifest.identity()
    return {}
