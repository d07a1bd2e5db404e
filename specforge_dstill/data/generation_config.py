"""What a target's generation_config.json says to transformers' ``generate``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

#: Settings that change the logits, and their values that do not; None and nothing never do.
_ALWAYS = {
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": (),
    "suppress_tokens": (),
    "begin_suppress_tokens": (),
    "sequence_bias": (),
    "min_length": 0,
    "min_new_tokens": 0,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1,
    "watermarking_config": None,
}
#: As above, of ``generate`` when it samples. Temperature, top-k and top-p are options here.
_SAMPLING = {"min_p": 0, "top_h": None, "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0}


def generation_config(target: str | os.PathLike[str]) -> Any:
    """The target's, a transformers GenerationConfig; None for a target without the file."""
    from transformers import GenerationConfig

    with contextlib.suppress(OSError):
        return GenerationConfig.from_pretrained(target)
    return None


def unheeded_settings(target: str | os.PathLike[str], *, sampled: bool) -> dict[str, Any]:
    """Settings with which ``generate`` changes the target's logits, and our decoding does not.

    Args:
        sampled: whether answers are drawn, not greedy.

    Returns:
        JSON values by the settings' names.
    """
    config = generation_config(target)
    if config is None:
        return {}
    found = config.to_dict()
    neutral = {**_ALWAYS, **(_SAMPLING if sampled else {})}
    return {
        name: found[name]
        for name, value in neutral.items()
        if found.get(name) and found[name] != value
    }


def unheeded_text(settings: Mapping[str, Any]) -> str:
    """What :func:`unheeded_settings` found, for a warning."""
    told = ", ".join(f"{name} = {value}" for name, value in settings.items())
    return (
        f"the target's generation_config.json sets {told}, which is not applied: answers follow "
        "its own logits, not those of transformers' generate; a server may apply it."
    )
