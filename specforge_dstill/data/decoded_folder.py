"""A folder of measured answers, a file a prompt, so that a stopped measurement goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specforge_dstill.data.settings import claim_settings, differences
from specforge_dstill.errors import UserError
from specforge_dstill.files import json_bytes, make_folder, reading, write_atomically
from specforge_dstill.token_hash import token_hash

SETTINGS = "settings.json"
#: Recorded, not compared: where the target lay (its weights are compared).
_ONLY_RECORDED = ("target",)
#: Compared where it is known: folders that were begun earlier may lack it.
_CAME_LATER = ("device_name", "versions")


class DecodedFolder:
    """JSON objects by their prompt's token ids, all measured with the same settings.

    Raises:
        UserError: the folder holds what was measured with other settings, or cannot be written.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        make_folder(folder)
        own = json.loads(json.dumps(settings))
        held = claim_settings(folder / SETTINGS, own)
        unknown = [name for name in _CAME_LATER if name not in held]
        changed = differences(held, own, ignored=(*_ONLY_RECORDED, *unknown))
        if changed:
            raise UserError(
                f"{folder}: holds answers measured with other settings ({changed}); choose "
                "another folder with --output"
            )

    def get(self, prompt_ids: Sequence[int]) -> dict[str, Any] | None:
        """What was measured for a prompt, None if nothing was yet."""
        path = self._path(prompt_ids)
        if not path.is_file():
            return None
        try:
            with reading(path):
                found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(
                f"{path}: is no whole answer ({error}); delete it and run the same command again"
            ) from error
        return found

    def put(self, prompt_ids: Sequence[int], measured: Mapping[str, Any]) -> None:
        """Keep what was measured."""
        write_atomically(self._path(prompt_ids), json_bytes(measured))

    def _path(self, prompt_ids: Sequence[int]) -> Path:
        return self._folder / f"{token_hash(list(prompt_ids))}.json"
