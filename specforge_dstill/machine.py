"""Defaults that fit the machine: what SpecForge assumes of a GPU, replaced where there is none."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from specforge_dstill.errors import UserError
from specforge_dstill.mode_names import DSTILL_MODES
from specforge_dstill.runfile import RunFile

if TYPE_CHECKING:
    from collections.abc import Collection

    from specforge.config import Config

_CPU_DEFAULTS = {
    ("training", "attention_backend"): "sdpa",
    ("training", "fsdp_sharding"): "NO_SHARD",
    ("model", "torch_dtype"): "float32",
}
_GPU_ONLY_ATTENTION = ("flex_attention", "fa", "usp")


def check_attention(run: RunFile) -> None:
    """Refuse flash-attn where it cannot be used, in one line and before anything is loaded.

    Raises:
        UserError: a mode of ours other than collection; float32; or it is not installed.
    """
    if run.mode not in DSTILL_MODES or run.config.training.attention_backend != "fa":
        return
    where = f"{run.path}: training.attention_backend: fa"
    if run.mode != "dstill_collect":
        raise UserError(
            f"{where} has no backward pass and is for --mode dstill_collect alone; set it under "
            "modes.dstill_collect.training"
        )
    if run.config.model.torch_dtype == "float32":
        raise UserError(f"{where} needs model.torch_dtype: bfloat16 or float16, not float32")
    if find_spec("flash_attn") is None:
        raise UserError(
            f"{where} needs flash-attn: pip install 'specforge-dstill[fa]', or leave it out"
        )


def fit_to_machine(
    run: RunFile, *, device_type: str, attention_backends: Collection[str] = ("sdpa",)
) -> tuple[Config, str | None]:
    """The run's config as this machine can train it, and a line that says what was chosen.

    What the user set is respected; only defaults move, and only without a GPU.

    Args:
        device_type: "cpu", "cuda" or "npu".
        attention_backends: what the mode supports.

    Raises:
        UserError: the user, or the mode, asks for an attention that needs a GPU.
    """
    if device_type != "cpu":
        return run.config, None
    asked = run.config.training.attention_backend
    if "training.attention_backend" in run.explicit and asked in _GPU_ONLY_ATTENTION:
        raise UserError(
            f"{run.path}: training.attention_backend: {asked} needs a GPU, and there is none "
            "here; leave it out, or set it to sdpa"
        )
    if not {"sdpa", "eager"} & set(attention_backends):
        raise UserError(
            f"--mode {run.mode} needs {' or '.join(sorted(attention_backends))}, which cannot "
            "train on a machine without a GPU"
        )
    raw = run.config.model_dump()
    chosen = []
    for (section, name), value in _CPU_DEFAULTS.items():
        key = f"{section}.{name}"
        if key not in run.explicit and raw[section][name] != value:
            raw[section][name] = value
            chosen.append(f"{key}={value}")
    if not chosen:
        return run.config, None
    fitted = type(run.config).model_validate(raw)
    return fitted, f"no GPU here: using {', '.join(chosen)}"
