"""An exported folder against what engines read, against SpecForge's class and against training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.data.sample_check import dtype_name
from specforge_dstill.errors import UserError
from specforge_dstill.export.draft_facts import DraftFacts
from specforge_dstill.export.draft_files import CONFIG, DraftFiles, read_config
from specforge_dstill.export.exporter import Exportable
from specforge_dstill.export.folder import PROVENANCE
from specforge_dstill.export.launch_commands import unserved
from specforge_dstill.export.layouts import HF, NATIVE, SPECULATORS
from specforge_dstill.export.target_facts import TargetFacts
from specforge_dstill.export.weights import expected_shapes, faults
from specforge_dstill.options import flatten

#: What engines act on and training does not: left out by every export. By dotted name.
FOREIGN = (
    *("logit_scale", "is_neox_style", "rope_is_neox_style", "partial_rotary_factor"),
    *("use_gemma_norm", "add_swa_attention_sink_bias", "eagle_config", "mask_token"),
    *("output_multiplier", "input_embedding_scale", "n_predict", "is_causal"),
    *(
        f"dflash_config.{name}"
        for name in (
            *("use_swa", "swa_window_size", "attention_sink_bias", "attention_value_scale"),
            *("output_multiplier", "input_embedding_scale", "final_logit_softcapping"),
            *("conv_kernel_size", "selector_rank", "use_aux_hidden_state", "mask_token"),
            *("projector_type", "sample_from_anchor", "causal"),
        )
    ),
)


@dataclass(frozen=True)
class Finding:
    """One line of a check.

    Attributes:
        part: what was looked at.
    """

    part: str
    told: str
    is_fault: bool = False


@dataclass(frozen=True)
class Folder:
    """An exported drafter as it lies there."""

    path: Path
    config: dict[str, Any]
    files: DraftFiles
    facts: DraftFacts
    provenance: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Folder:
        """UserError when it is no drafter's folder at all."""
        config, files = read_config(path), DraftFiles.read(str(path))
        return cls(path, config, files, DraftFacts.of(files.config), _provenance(path))

    @property
    def layout(self) -> str:
        """As its config tells; native and hf differ by what the export noted."""
        if "speculators_model_type" in self.config:
            return SPECULATORS
        return HF if self.provenance.get("layout") == HF else NATIVE

    @property
    def dtype(self) -> torch.dtype:
        """Of its first tensor."""
        return next(iter(self.files.tensors.values())).dtype

    def as_exportable(self, target: TargetFacts) -> Exportable:
        """For the config that it should have by its own word."""
        return Exportable(self.files.config, self.facts, target, self.files.tensors, self.dtype, {})


def _provenance(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_config(folder: Folder, training: Exportable | None, target: TargetFacts) -> list[Finding]:
    """Every key that an engine reads: as the training drafter's, else as its own keys imply."""
    if folder.layout == HF:
        return [Finding("config", "hf layout, for further training: engines want --to native")]
    try:
        target.check_fits(
            folder.files.config,
            layer_ids=list(folder.facts.layer_ids),
            mask_token_id=folder.facts.mask_token_id,
        )
    except UserError as error:
        return [Finding("config", str(error), is_fault=True)]
    wanted = flatten((training or folder.as_exportable(target)).layout(folder.layout))
    found = flatten(folder.config)
    told = [Finding("config", fault, is_fault=True) for fault in _differences(found, wanted)]
    told += [
        Finding("layers", f"{engine}: {reason}", is_fault=True)
        for engine, reason in unserved(folder.facts, target).items()
    ]
    if told:
        return told
    like = "as in training" if training else "as they imply each other"
    return [
        Finding("config", f"{len(wanted)} keys of the {folder.layout} layout, {like}"),
        Finding("layers", _layers(folder, target)),
    ]


def _layers(folder: Folder, target: TargetFacts) -> str:
    shift = 1 if folder.layout == SPECULATORS else 0
    written = [layer + shift for layer in folder.facts.layer_ids]
    reads = ", ".join(map(str, folder.facts.layer_ids))
    last = target.shape.layers - 1
    return f"outputs of target layers {reads} of 0 to {last}, written as {written}"


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for name, value in wanted.items():
        if name not in found:
            yield f"{name} is missing, should be {json.dumps(value)}"
        elif found[name] != value:
            yield f"{name} is {json.dumps(found[name])}, should be {json.dumps(value)}"
    for name in found:
        short = name.removeprefix("transformer_layer_config.")
        if name not in wanted and short in FOREIGN:
            yield f"{name} is {json.dumps(found[name])}: engines act on it, training does not"


def check_weights(folder: Folder, training: Exportable | None) -> list[Finding]:
    """Names, shapes and dtypes as SpecForge's class has them; values as the checkpoint's."""
    tensors = folder.files.tensors
    told = faults(tensors, expected_shapes(folder.files.config))
    named = folder.config.get("dtype")
    if named != dtype_name(folder.dtype):
        told.append(f"{CONFIG} names dtype {named}, the tensors are {dtype_name(folder.dtype)}")
    if training is not None:
        told += _other_values(tensors, training.tensors)
    if told:
        return [Finding("weights", fault, is_fault=True) for fault in told]
    count = sum(tensor.numel() for tensor in tensors.values())
    size = f"{len(tensors)} tensors, {count / 1e6:.1f} M parameters, {dtype_name(folder.dtype)}"
    return [Finding("weights", f"{size}{', the checkpoint’s own' if training else ''}")]


def _other_values(tensors: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> list[str]:
    return [
        f"{name} has other values than the checkpoint"
        for name, tensor in tensors.items()
        if name in trained and not torch.equal(tensor, trained[name])
    ]
