"""DSpark's trained heads: the Markov head as a chain of low rank, and the confidence head.

SpecForge's Markov heads give a bias over the vocabulary, ``markov_w2(latent)``. With ``markov_w2``
left out they give the latent, by their own code; the product is then formed where a tile of logits
is in memory anyway.

Shapes: b samples, N blocks, B positions of a block, H hidden size, V vocabulary, r rank.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specforge_dstill.maths.chain import Chain


@dataclass(frozen=True)
class HeadedStates:
    """States, and what a drafter's own heads make of them; of positions 1..B-1.

    Attributes:
        states: [b, N, B, H].
        latents: [b, N, B-1, r], of the Markov head; None without one.
        weight: [V, r], what makes biases of them.
        confidence: [b, N, B-1] float32, logits of a token's acceptance; None without that head.
    """

    states: Tensor
    latents: Tensor | None
    weight: Tensor | None
    confidence: Tensor | None


def run_heads(draft: Any, states: Tensor, tokens: Tensor) -> HeadedStates:
    """Both heads over whole blocks whose ``tokens`` [b, N, B] are known."""
    before, predicting = tokens[..., :-1], states[..., 1:, :]
    confidence = draft.predict_confidence(predicting, prev_token_ids=before)
    head = draft.markov_head
    if head is None:
        return HeadedStates(states, None, None, confidence)
    nothing = states.new_zeros(*before.shape, head.markov_rank)
    latents = _without_projection(head).apply_block_logits(
        nothing, token_ids=before, hidden_states=predicting
    )
    return HeadedStates(states, latents, head.markov_w2.weight, confidence)


def markov_chain(draft: Any) -> Chain | None:
    """The Markov head of SpecForge's draft model, one position at a time; None without one."""
    head = getattr(draft, "markov_head", None)
    if head is None:
        return None
    bare = _without_projection(head)

    def step(tokens: Tensor, states: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if head.markov_head_type != "rnn":
            return bare.compute_step_bias(tokens, states), None
        embedded = bare.get_prev_embeddings(tokens)
        memory = torch.zeros_like(embedded) if memory is None else memory
        memory, latents = bare._rnn_step(memory, embedded, states)
        return latents, memory

    return Chain(head.markov_w2.weight, step)


def _without_projection(head: Any) -> Any:
    """The head, over the same weights, with latents in the place of biases."""
    bare = copy(head)
    bare._modules = {**head._modules, "markov_w2": nn.Identity()}
    return bare
