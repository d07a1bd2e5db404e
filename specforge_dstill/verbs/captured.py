"""``evaluate --replay --captured``: the answers of feature caches in the place of prompts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specforge_dstill.data.cache_check import check_cache
from specforge_dstill.data.captured_answers import CapturedAnswers
from specforge_dstill.data.feature_files import HIDDEN
from specforge_dstill.data.target_identity import config_hash, weights_fingerprint
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.replay import Answer
from specforge_dstill.verbs.evaluate_options import CAPTURED
from specforge_dstill.verbs.evaluation_inputs import DataSet
from specforge_dstill.verbs.evaluation_plan import EvaluationPlan


def captured_answers(plan: EvaluationPlan) -> tuple[dict[str, list[Answer]], dict[str, Any]]:
    """The answers by data set, and what the results tell of them.

    Raises:
        UserError: a cache that is unfinished or damaged, of other target layers, of drawn answers;
            caches whose answers were made in different ways.
    """
    caches = {chosen.name: _open(plan, chosen) for chosen in plan.args.captured}
    answers = {name: cache.answers() for name, cache in caches.items()}
    for name, found in answers.items():
        if not found:
            raise UserError(f"{CAPTURED} {name}: no token is scored there")
    answering = _common({name: _answering(cache) for name, cache in caches.items()})
    prompts = {
        name: {
            "source": str(cache.folder),
            "limit": plan.args.limit,
            "count": len(cache.rows),
            "hash": cache.manifest.conversations_hash,
        }
        for name, cache in caches.items()
    }
    return answers, {**answering, "prompts": prompts}


def _open(plan: EvaluationPlan, chosen: DataSet) -> CapturedAnswers:
    folder = Path(str(chosen.source))
    found = CapturedAnswers.of(folder, limit=plan.args.limit)
    check_cache(
        folder,
        required_keys=("input_ids", "loss_mask", HIDDEN),
        width=len(plan.capture.layers) * plan.capture.hidden_size,
        layers=plan.capture.layers,
        target_hash=config_hash(plan.capture.target_config),
        target_weights=weights_fingerprint(plan.target) or "",
    )
    return found


def _common(answering: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """How all data sets' answers were made; UserError when two differ."""
    (first, ways), *others = answering.items()
    for name, other in others:
        for key in ways:
            if other[key] != ways[key]:
                raise UserError(
                    f"{CAPTURED}: the answers of {first} and {name} were made in different ways "
                    f"({key} {ways[key]} and {other[key]}); evaluate them apart, each with its own "
                    "--output"
                )
    return ways


def _answering(cache: CapturedAnswers) -> dict[str, Any]:
    """How the answers were made, under the names that results have for it."""
    manifest = cache.manifest
    return {
        "max_new_tokens": manifest.generation.get("max_new_tokens"),
        "chat_template": manifest.chat_template_hash,
        "template_kwargs": manifest.template_kwargs,
        "features_dtype": manifest.dtype,
    }
