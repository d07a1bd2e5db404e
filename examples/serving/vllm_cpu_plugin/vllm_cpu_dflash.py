"""Lets vLLM 0.30.0 draft with DFlash on a CPU, at temperature 0, as it drafts on a GPU.

Two of vLLM's Triton kernels have CPU functions in vLLM itself, but its CPU runner rebinds the
kernel's name, while the code calls the dispatcher that has kept the kernel. And a third operation
that takes one weight a layer on a GPU takes the first layer's for all of them on a CPU, which
nothing tells: it drafts a little worse.
"""

from __future__ import annotations

from typing import Any

import torch


def register() -> None:
    """Mend all three. vLLM calls this in each of its processes."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.spec_decode import utils

    drafting = cpu_triton_utils.copy_and_expand_dflash_inputs_kernel
    utils._copy_and_expand_dflash_inputs.kernel = drafting
    accepting = cpu_triton_utils.rejection_greedy_sample_kernel
    rejection_sampler._rejection_greedy_sample.kernel = accepting
    DFlashQwen3Model._normalize_context_k = normalize_by_layer


def normalize_by_layer(model: Any, keys: torch.Tensor) -> torch.Tensor:
    """Each layer's context keys [layers, tokens, heads, width] by its own weight, as on an XPU."""
    from vllm import _custom_ops as ops

    normalized = torch.empty_like(keys)
    for index, weight in enumerate(model._k_norm_weights):
        ops.rms_norm(normalized[index], keys[index], weight, model._rms_norm_eps)
    return normalized
