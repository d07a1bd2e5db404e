"""From a trained drafter to a folder in one of the layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from specforge.modeling.auto import AutoDraftModel
from torch import Tensor, nn

from specforge_dstill.data.draft_config import resolve_draft
from specforge_dstill.data.versions import library_versions
from specforge_dstill.export.draft_facts import DraftFacts
from specforge_dstill.export.draft_files import DraftFiles
from specforge_dstill.export.folder import check_free, write_folder
from specforge_dstill.export.layouts import (
    HF,
    NATIVE,
    SPECULATORS,
    hf_config,
    native_config,
    speculators_config,
)
from specforge_dstill.export.target_facts import TargetFacts
from specforge_dstill.export.weights import expected_shapes, require
from specforge_dstill.modes.checkpoints import weights_hash
from specforge_dstill.modes.drafter_identity import check_same_drafter, identity_of
from specforge_dstill.runfile import RunFile

FORMAT = 1


@dataclass(frozen=True)
class Exportable:
    """A trained drafter beside its target, checked.

    Attributes:
        config: SpecForge's draft config.
        tensors: exactly those of SpecForge's class, all of ``dtype``.
        origin: where they come from.
    """

    config: Any
    facts: DraftFacts
    target: TargetFacts
    tensors: Mapping[str, Tensor]
    dtype: torch.dtype
    origin: Mapping[str, Any]

    @classmethod
    def of(cls, run: RunFile, checkpoint: str, *, target: str | None = None) -> Exportable:
        """Read a checkpoint, or a folder, which has its own draft config.

        Args:
            target: instead of the run file's.

        Raises:
            UserError: what is wrong with the checkpoint, or does not fit the target, or that the
                draft config has changed since.
        """
        model = run.config.model
        files = DraftFiles.read(checkpoint)
        config = files.config
        if config is None:
            config = resolve_draft(run.config)
        facts = DraftFacts.of(config, mask_token_id=model.mask_token_id)
        if files.trained is not None:
            own = {
                **identity_of(config),
                "target_layer_ids": list(facts.layer_ids),
                "mask_token_id": facts.mask_token_id,
            }
            check_same_drafter(checkpoint, files.trained, own, learns=False)
        found = TargetFacts.of(
            target or model.target_model_path, trust_remote_code=model.trust_remote_code
        )
        found.check_fits(config, layer_ids=list(facts.layer_ids), mask_token_id=facts.mask_token_id)
        dtype = require(files.tensors, expected_shapes(config), where=checkpoint)
        return cls(config, facts, found, files.tensors, dtype, files.origin)

    def layout(self, name: str) -> dict[str, Any]:
        """The config.json of a layout."""
        if name == HF:
            return hf_config(self.config, self.facts, dtype=self.dtype)
        native = native_config(self.config, self.facts, self.target, dtype=self.dtype)
        if name == SPECULATORS:
            return speculators_config(native, self.facts, self.target)
        assert name == NATIVE
        return native

    def model(self) -> nn.Module:
        """SpecForge's class with these weights."""
        draft = AutoDraftModel.from_config(self.config, torch_dtype=self.dtype)
        draft.load_state_dict(self.tensors)
        return draft


def export(draft: Exportable, layout: str, folder: Path, *, run: RunFile, checkpoint: str) -> None:
    """Write ``folder`` with config, weights and provenance. UserError when it is there already."""
    check_free(folder)
    provenance = {
        "format": FORMAT,
        "layout": layout,
        "checkpoint": checkpoint,
        "origin": dict(draft.origin),
        "weights": weights_hash(draft.model()),
        "run_file": str(Path(run.path).resolve()),
        "target": {"name": draft.target.name, "config_hash": draft.target.config_hash},
        "date": datetime.now(UTC).isoformat(sep=" ", timespec="seconds"),
        "versions": library_versions("specforge", "transformers", "torch"),
    }
    write_folder(folder, config=draft.layout(layout), tensors=draft.tensors, provenance=provenance)
