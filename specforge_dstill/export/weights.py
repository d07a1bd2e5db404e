"""A drafter's tensors against what SpecForge's class has: by name, by shape and by dtype.

vLLM refuses a tensor that it does not know and serves a missing one uninitialised, SGLang ignores
both, and neither tells. So what is exported, and what is checked, has exactly these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from specforge.modeling.auto import AutoDraftModel
from torch import Tensor

from specforge_dstill.data.sample_check import dtype_name
from specforge_dstill.errors import UserError

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: Any) -> Shapes:
    """Of SpecForge's class for a draft config; no memory is taken for its weights."""
    with torch.device("meta"):
        model = AutoDraftModel.from_config(deepcopy(config))
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def faults(found: Mapping[str, Tensor], expected: Shapes) -> list[str]:
    """What is wrong with tensors, a phrase each; none when all is well."""
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    told = []
    if missing:
        told.append(f"missing {_list(missing)}")
    if extra:
        told.append(f"not the architecture's: {_list(extra)}")
    told += [
        f"{name} is {list(found[name].shape)}, should be {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name].shape) != shape
    ]
    dtypes = sorted({dtype_name(tensor.dtype) for tensor in found.values()})
    if len(dtypes) > 1:
        told.append(f"of several dtypes: {', '.join(dtypes)}")
    return told


def require(found: Mapping[str, Tensor], expected: Shapes, *, where: str) -> torch.dtype:
    """The tensors' dtype. UserError, naming ``where``, when they are not the architecture's."""
    told = faults(found, expected)
    if told:
        raise UserError(
            f"{where}: its weights do not fit the draft config: {'; '.join(told)}; name the config "
            "that it was trained with"
        )
    return next(iter(found.values())).dtype


def _list(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
