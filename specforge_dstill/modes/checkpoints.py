"""Draft weights from wherever they lie: a run of any DFlash-family mode, or a published folder.

SpecForge refuses a warm start across strategies. A DSTILL pipeline is made of such starts
(dflash -> teacher -> student), and the drafter is the same in all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from specforge.algorithms.common.providers import checkpoint_key_fingerprint
from specforge.modeling.auto import AutoDraftModel
from specforge.training.checkpoint import CheckpointManager
from specforge.training.model_loading import warm_start_draft_model
from torch import nn

from specforge_dstill.data.draft_config import backbone_of
from specforge_dstill.errors import UserError
from specforge_dstill.modes.divergence import first_not_finite, require_finite_weights
from specforge_dstill.modes.drafter_identity import (
    check_same_drafter,
    identity_of,
    published_identity,
    recorded_identity,
)

TEACHER = "dstill_teacher"
FAMILY = ("dflash", "dspark", TEACHER, "dstill_student")
STATE_FILE = "training_state.pt"


def build_draft(config: Any, draft_config: Any) -> nn.Module:
    """The ``build_draft`` hook of our modes: SpecForge's class, warm-started if asked to."""
    from specforge.utils import get_local_device

    kernels: dict[str, Any] = {}
    if config.model.use_liger_kernel:
        from specforge.modeling.draft.dflash_kernels import load_liger_dflash_kernels

        if backbone_of(draft_config) != "dflash":
            raise UserError("model.use_liger_kernel is for DFlash drafters only; leave it out")
        kernels = {"dflash_kernels": load_liger_dflash_kernels()}
    dtype = getattr(torch, config.model.torch_dtype)
    draft = AutoDraftModel.from_config(draft_config, torch_dtype=dtype, **kernels)
    source = config.model.draft_checkpoint_path
    if source:
        load_draft_weights(draft, source, draft_config, config.model)
    return draft.to(device=get_local_device(), dtype=dtype)


def load_draft_weights(draft: nn.Module, source: str, draft_config: Any, model: Any) -> None:
    """Load weights into ``draft`` from a checkpoint folder, a run folder or a Hugging Face folder.

    Args:
        source: the folder (or the name of a repository on the Hub).
        model: SpecForge's ``model:`` section, for ``cache_dir`` and ``trust_remote_code``.

    Raises:
        UserError: nothing to load there, weights of another architecture, or of another family,
            or that are not finite.
    """
    state_file = find_state_file(source)
    state = read_state(state_file, "strategy") if state_file else {"strategy": FAMILY[0]}
    strategy = str(state["strategy"])
    if strategy not in FAMILY:
        raise UserError(
            f"{source} was written by mode {strategy}; a drafter can start from a checkpoint of "
            f"{', '.join(FAMILY)}, or from a Hugging Face folder of a drafter"
        )
    if state_file:
        trained = recorded_identity(state)
    else:
        try:
            trained = published_identity(source, model)
        except (OSError, ValueError) as error:
            raise _cannot_load(source, error) from error
    check_same_drafter(source, trained, identity_of(draft_config))
    # A published config may name another dtype than its weights have (SpecForge's export writes
    # bfloat16 beside float32 weights), and loading by it would round them.
    own_config = deepcopy(draft_config)
    own_config.dtype = next(draft.parameters()).dtype
    try:
        warm_start_draft_model(
            draft,
            str(state_file) if state_file else source,
            draft_config=own_config,
            strategy=strategy,
            cache_dir=model.cache_dir,
            trust_remote_code=model.trust_remote_code,
        )
    except (OSError, ValueError) as error:
        raise _cannot_load(source, error) from error
    broken = first_not_finite(draft.state_dict())
    if broken is not None:
        raise UserError(
            f"{source}: its {broken} holds NaN or infinite values, and so would all that starts "
            "from it; take an earlier checkpoint"
        )


def warn_of_other_teacher(source: str) -> None:
    """Warn when the checkpoint that is to refine was trained by another mode than the teacher's.

    Every drafter of the family has the teacher's shape. A published folder does not tell its mode.
    """
    state_file = find_state_file(source)
    strategy = TEACHER if state_file is None else _strategy_of(state_file)
    if strategy != TEACHER:
        warnings.warn(
            f"{source} was trained by {strategy}, not {TEACHER}: its refinement is what the "
            "student will learn",
            stacklevel=2,
        )


def find_state_file(source: str) -> Path | None:
    """The training state under a checkpoint or run folder; None if there is none to find."""
    path = Path(source.removeprefix("file://")).expanduser()
    if not path.exists() or (path / "config.json").exists():
        return None
    try:
        return Path(CheckpointManager.resolve_resume_dir(str(path))) / STATE_FILE
    except (FileNotFoundError, ValueError) as error:
        raise UserError(f"no drafter to start from: {_one_line(error)}") from error


def _strategy_of(state_file: Path) -> str:
    """The mode that wrote a checkpoint."""
    return str(read_state(state_file, "strategy")["strategy"])


def read_state(state_file: Path, *needed: str) -> dict[str, Any]:
    """A training state: tensors and plain values only, no code is unpickled.

    Raises:
        UserError: a damaged file, or one that lacks one of ``needed``.
    """
    try:
        state: dict[str, Any] = torch.load(
            state_file, map_location="cpu", weights_only=True, mmap=True
        )
        for name in needed:
            state[name]
        return state
    except Exception as error:
        raise UserError(
            f"cannot read the checkpoint {state_file}: {_one_line(error)}; "
            "it may be cut short: take an earlier one"
        ) from error


def _cannot_load(source: str, error: Exception) -> UserError:
    return UserError(f"cannot load draft weights from {source}: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def draft_weights(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The draft's part of a drafter's state, under the names SpecForge gives it on disk."""
    prefix = "draft_model."
    return {
        name.removeprefix(prefix): value
        for name, value in state_dict.items()
        if name.startswith(prefix)
    }


def weights_to_save(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """:func:`draft_weights`. UserError where one is not finite: the training has diverged."""
    weights = draft_weights(state_dict)
    require_finite_weights(weights)
    return weights


def parameter_count(draft: nn.Module) -> int:
    """How many numbers the drafter has of its own: those that are trained."""
    return sum(parameter.numel() for parameter in draft.parameters())


def weights_hash(draft: nn.Module) -> str:
    """SHA-256 over names, dtypes, shapes and values of the draft's weights."""
    return checkpoint_key_fingerprint(draft, draft.state_dict().keys())
