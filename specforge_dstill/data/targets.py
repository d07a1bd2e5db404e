"""Loading a target's tokenizer and weights through transformers, with clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specforge_dstill.errors import UserError, reason

DTYPES = ("float32", "bfloat16", "float16")


def load_tokenizer(target: str, *, trust_remote_code: bool = False) -> Any:
    """The target's tokenizer; UserError when it is not to be had."""
    from transformers import AutoTokenizer

    return _load("tokenizer", AutoTokenizer, target, trust_remote_code=trust_remote_code)


def load_config(target: str, *, trust_remote_code: bool = False) -> Any:
    """The target's configuration; UserError when it is not to be had."""
    from transformers import AutoConfig

    return _load("configuration", AutoConfig, target, trust_remote_code=trust_remote_code)


def load_model(
    target: str,
    *,
    dtype: str | None = None,
    device: str | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """The target, a causal language model in evaluation mode, frozen.

    dtype default: float32 on a CPU (half precision is very slow on many), else the
    checkpoint's own. device default: the GPU when there is one.
    """
    from transformers import AutoModelForCausalLM

    check_device(device)
    device = device or default_device()
    chosen: Any = dtype or ("float32" if device == "cpu" else "auto")
    options: dict[str, Any] = {
        "dtype": getattr(torch, chosen) if chosen in DTYPES else chosen,
        "trust_remote_code": trust_remote_code,
    }
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    model = _load("model", AutoModelForCausalLM, target, **options)
    return model.to(device).eval().requires_grad_(False)


def check_device(device: str | None) -> None:
    """UserError for a ``--device`` that this machine does not have."""
    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"--device {device}: cannot be used on this machine ({reason(error)}); give another, "
            f"or leave --device out for {default_device()}"
        ) from error


def default_device() -> str:
    """ "cuda" when a GPU is there, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def max_positions(config: Any) -> int | None:
    """The longest sequence the target takes, None when its configuration does not say."""
    found = getattr(getattr(config, "text_config", None) or config, "max_position_embeddings", None)
    return int(found) if found else None


def must_be_path(value: str) -> bool:
    """Whether a model's name must be a path: a hub id has one slash at most and no suffix.

    A name whose first part is a folder here is taken for a path, too.
    """
    if "://" in value:
        return False
    if value.startswith(("/", ".", "~")) or value.count("/") > 1 or value.endswith(".json"):
        return True
    return "/" in value and Path(value).parent.is_dir()


def _check_named(target: str) -> None:
    """UserError for a path that is not there; asking the Hub for it would take many tries."""
    if not Path(target).exists() and (must_be_path(target) or "/" not in target):
        raise UserError(
            f"{target}: no such folder (paths count from {Path.cwd()}), and a name on the Hub has "
            "the form org/name"
        )


def _load(what: str, kind: Any, target: str, **options: Any) -> Any:
    _check_named(target)
    try:
        return kind.from_pretrained(target, **options)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(
            f"{target}: the target's {what} cannot be loaded: {reason(error)}"
        ) from error
