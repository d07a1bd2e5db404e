"""A training that has diverged ends, before it saves what is NaN over what is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.data.feature_files import all_finite
from specforge_dstill.errors import UserError

_MEND = (
    "start anew with a lower training.learning_rate and another output_dir or run_id; a teacher's "
    "training can start from a checkpoint saved before (all are finite) by "
    "model.draft_checkpoint_path, while training.resume_from would bring the old rate back"
)


class LossWatch:
    """Looks at the loss of each step when the next one begins.

    By then SpecForge has read that step's numbers, so that looking waits for nothing.
    """

    def __init__(self) -> None:
        self._before: Tensor | None = None

    def look(self) -> None:
        """Raises: ``UserError`` when the loss that was noted is NaN or infinite."""
        if self._before is not None and not torch.isfinite(self._before):
            raise UserError(f"training diverged: its loss is {float(self._before)}; {_MEND}")

    def note(self, loss: Tensor) -> None:
        """Keep a step's loss, a scalar."""
        self._before = loss.detach()


def require_finite_weights(weights: Mapping[str, Any]) -> None:
    """Raises: ``UserError`` naming the first weight with an element that is NaN or infinite."""
    name = first_not_finite(weights)
    if name is not None:
        raise UserError(f"training diverged: {name} is not finite; {_MEND}")


def first_not_finite(weights: Mapping[str, Any]) -> str | None:
    """The name of the first weight with an element that is NaN or infinite; None where none is."""
    for name, value in weights.items():
        if isinstance(value, Tensor) and value.is_floating_point() and not all_finite(value):
            return name
    return None
