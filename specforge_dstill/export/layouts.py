"""The config.json of each layout, as pure functions of drafter and target.

Only what training honours is written, and all of it: an engine reads what it finds and takes its
own default for what it misses, without a word. Read in the sources of sglang 0.5.14 and 0.5.23,
vllm 0.30.0, dflash 0.1.0 and speculators 0.9.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch

from specforge_dstill.data.sample_check import dtype_name
from specforge_dstill.errors import UserError
from specforge_dstill.export.draft_facts import DraftFacts
from specforge_dstill.export.target_facts import TargetFacts

NATIVE, SPECULATORS, HF = "native", "speculators", "hf"
LAYOUTS = (NATIVE, SPECULATORS, HF)

Json = dict[str, Any]

#: Of the draft config, as they are.
_SHAPE = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps"),
    *("attention_bias", "attention_dropout", "initializer_range"),
)
#: Of the native layout, what is not part of the speculators layout's transformer. The number of
#: target layers is, for SpecForge, which finds it nowhere else.
_METHOD = ("architectures", "block_size", "dflash_config")


def native_config(
    config: Any, facts: DraftFacts, target: TargetFacts, *, dtype: torch.dtype
) -> Json:
    """What SGLang, vLLM and dflash read.

    Target layers count from 0: id k is the output of layer k, which is
    ``output_hidden_states[k + 1]`` of transformers.

    Args:
        config: SpecForge's draft config.
        dtype: of the tensors.
    """
    plain = config.to_dict()
    method: Json = {
        "block_size": facts.block_size,
        "mask_token_id": facts.mask_token_id,
        "num_target_layers": target.shape.layers,
        "target_layer_ids": list(facts.layer_ids),
    }
    told: Json = {} if facts.is_causal is None else {"is_causal": facts.is_causal}
    if facts.is_causal is not None:
        method["causal"] = facts.is_causal
    if target.softcap is not None:
        method["final_logit_softcapping"] = target.softcap
    if target.embed_scale is not None:
        method["input_embedding_scale"] = target.embed_scale
    markov = _markov_fields(facts)
    return {
        "architectures": [facts.architecture],
        "model_type": "qwen3",
        "dtype": dtype_name(dtype),
        **{name: plain[name] for name in _SHAPE},
        "tie_word_embeddings": False,
        **_rope(plain),
        "max_position_embeddings": _positions(plain, target),
        "layer_types": list(facts.layer_types),
        "sliding_window": facts.window,
        "use_sliding_window": facts.window is not None,
        # Qwen3's own: the first layer that slides. layer_types overrule it.
        "max_window_layers": plain["max_window_layers"],
        **told,
        "block_size": facts.block_size,
        "num_target_layers": target.shape.layers,
        **markov,
        "dflash_config": {**method, **_nested(markov)},
    }


def speculators_config(native: Json, facts: DraftFacts, target: TargetFacts) -> Json:
    """What vLLM reads of a folder that its speculators library made.

    Layer ids are one more than the native ones: vLLM takes 1 off again.

    Raises:
        UserError: sliding and full layers that differ in causality. vLLM sets it for all layers
            of such a folder.
    """
    if facts.is_causal is None:
        raise UserError(
            "the speculators layout has no word for a drafter whose sliding layers are causal and "
            "whose full layers are not: vLLM takes all alike; export --to native, which it reads, "
            "too"
        )
    method = "dspark" if facts.markov else "dflash"
    markov = {name: native[name] for name in _markov_fields(facts)}
    body = {name: value for name, value in native.items() if name not in {*_METHOD, *markov}}
    return {
        "architectures": ["Qwen3DSparkModel" if facts.markov else "DFlashSpeculator"],
        "speculators_model_type": method,
        "speculators_version": "0.9.0",
        "dtype": native["dtype"],
        "tie_word_embeddings": False,
        "block_size": facts.block_size,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in facts.layer_ids],
        "mask_token_id": facts.mask_token_id,
        "draft_vocab_size": native["vocab_size"],
        "target_hidden_size": target.shape.hidden_size,
        "sliding_window_non_causal": not facts.is_causal,
        **markov,
        "sample_from_anchor": facts.markov is not None,
        "transformer_layer_config": body,
        "speculators_config": {
            "algorithm": method,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": facts.drafted},
            ],
            "verifier": {
                "name_or_path": target.name,
                "architectures": list(target.architectures),
            },
        },
    }


def hf_config(config: Any, facts: DraftFacts, *, dtype: torch.dtype) -> Json:
    """The draft config as it was trained with, for SpecForge and transformers.

    The mask token may stand in the run file alone, which does not go with the folder.
    """
    plain = config.to_dict()
    method = {**(plain.get("dflash_config") or {}), "mask_token_id": facts.mask_token_id}
    return {**plain, "dflash_config": method, "dtype": dtype_name(dtype)}


def trainable_config(found: Mapping[str, Any]) -> Json:
    """What SpecForge's class is built from, out of any layout.

    Raises: ``KeyError`` for a speculators folder that lacks a key.
    """
    if "speculators_model_type" not in found:
        return dict(deepcopy(found))
    dspark = found["speculators_model_type"] == "dspark"
    method = {
        "mask_token_id": found["mask_token_id"],
        "target_layer_ids": [layer - 1 for layer in found["aux_hidden_state_layer_ids"]],
    }
    heads = {name: found[name] for name in _HEADS if name in found}
    return {
        **deepcopy(found["transformer_layer_config"]),
        "architectures": ["DSparkDraftModel" if dspark else "DFlashDraftModel"],
        "block_size": found["block_size"],
        "dflash_config": {**method, **heads},
    }


_HEADS = (
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
)


def _markov_fields(facts: DraftFacts) -> Json:
    """DSpark's, at the top level: vLLM reads them there, and SGLang some of them."""
    if facts.markov is None:
        return {}
    values = (
        facts.markov.rank,
        facts.markov.kind,
        facts.markov.confidence,
        facts.markov.confidence_with_markov,
    )
    return {
        **dict(zip(_HEADS, values, strict=True)),
        "mask_token_id": facts.mask_token_id,
        "target_layer_ids": list(facts.layer_ids),
        "sample_from_anchor": True,
    }


def _nested(markov: Json) -> Json:
    """DSpark's, within ``dflash_config``: SGLang and SpecForge read them there."""
    return {**markov, "projector_type": "dspark"} if markov else {}


def _rope(plain: Mapping[str, Any]) -> Json:
    """Rotary embeddings in transformers 5's form and in that of before."""
    rope = dict(plain["rope_parameters"])
    legacy = {name: value for name, value in rope.items() if name != "rope_theta"}
    scaled = rope.get("rope_type", "default") != "default"
    return {
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "rope_scaling": legacy if scaled else None,
    }


def _positions(plain: Mapping[str, Any], target: TargetFacts) -> int:
    """The longest sequence: the target's, for vLLM makes its table of angles as long as this.

    Plain rotary angles do not depend on it; scaled ones may, so theirs is left alone.
    """
    own = int(plain["max_position_embeddings"])
    plain_rope = plain["rope_parameters"].get("rope_type", "default") == "default"
    return max(own, target.max_positions or own) if plain_rope else own
