"""How to start a server with an exported drafter.

The engines count differently: vLLM the drafted tokens alone, SGLang the anchor, too. vLLM reads no
block size, so a wrong number is served in silence.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from specforge_dstill.export.draft_facts import DraftFacts
from specforge_dstill.export.layouts import HF, SPECULATORS
from specforge_dstill.export.target_facts import TargetFacts


@dataclass(frozen=True)
class Launch:
    """A server's command line, or None for it where the engine cannot serve the folder, and why.

    Attributes:
        notes: a sentence each.
    """

    engine: str
    command: str | None
    notes: tuple[str, ...] = ()


def launches(
    facts: DraftFacts, *, layout: str, folder: str, target: TargetFacts
) -> tuple[Launch, ...]:
    """For SGLang and vLLM."""
    refused = unserved(facts, target)
    if layout == HF:
        reason = "the hf layout is for further training; to serve the drafter export --to native"
        refused = {"SGLang": reason, "vLLM": reason}
    if refused:
        return tuple(Launch(engine, None, (reason,)) for engine, reason in refused.items())
    sglang = _sglang(facts, folder=folder, target=target.name)
    if layout == SPECULATORS:
        reason = "it does not read the speculators layout; export --to native"
        sglang = Launch("SGLang", None, (reason,))
    return sglang, _vllm(facts, folder=folder, target=target.name)


def unserved(facts: DraftFacts, target: TargetFacts) -> dict[str, str]:
    """By engine, why it cannot serve the drafter in any layout; {} when both may."""
    if facts.window is not None and facts.window < facts.block_size:
        reason = (
            f"its window of {facts.window} is smaller than its block of {facts.block_size}: it was "
            "trained to see its block whole, engines cut the block by the window, too"
        )
        return {"SGLang": reason, "vLLM": reason}
    last = target.shape.layers - 1
    if last not in facts.layer_ids:
        return {}
    return {
        "SGLang": f"it never hands out the output of the target's last layer, {last}, which this "
        "drafter reads; train one on layers before it",
        "vLLM": f"it hands out the output of the target's last layer, {last}, before the final "
        "norm; this drafter was trained on it after the norm and would draft worse",
    }


def _sglang(facts: DraftFacts, *, folder: str, target: str) -> Launch:
    words = [
        *("python", "-m", "sglang.launch_server", "--model-path", target),
        *("--speculative-algorithm", "DSPARK" if facts.markov else "DFLASH"),
        *("--speculative-draft-model-path", folder),
        *("--speculative-num-draft-tokens", str(facts.drafted + 1)),
    ]
    return Launch("SGLang", shlex.join(words), tuple(_sglang_notes(facts)))


def _sglang_notes(facts: DraftFacts) -> Iterator[str]:
    if facts.markov:
        yield "DSpark needs SGLang 0.5.23; 0.5.14 does not know it"
    elif facts.needs_is_causal:
        yield "is_causal needs SGLang 0.5.23; 0.5.14 does not read it and would draft worse"


def _vllm(facts: DraftFacts, *, folder: str, target: str) -> Launch:
    speculative = {
        "method": "dspark" if facts.markov else "dflash",
        "model": folder,
        "num_speculative_tokens": facts.drafted,
    }
    words = ["vllm", "serve", target, "--speculative-config", json.dumps(speculative)]
    command, notes = shlex.join(words), tuple(_vllm_notes(facts))
    runner = "VLLM_USE_V2_MODEL_RUNNER=1 " if facts.needs_gpu_in_vllm else ""
    return Launch("vLLM", runner + command, notes)


def _vllm_notes(facts: DraftFacts) -> Iterator[str]:
    if facts.is_mixed:
        yield "sliding and full layers together need vLLM's V2 model runner, and so a GPU"
    if facts.markov:
        yield "DSpark needs vLLM's V2 model runner, and so a GPU"
        if facts.markov.kind != "vanilla":
            yield f"vLLM has no {facts.markov.kind} Markov head: it will refuse the weights"
