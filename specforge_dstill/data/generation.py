"""Answers of a target, token by token in this process, for many prompts at once.

Greedy, or sampled with one random stream a prompt: which numbers a prompt draws depends on
its own seed only, not on its neighbours in a batch. (Logits may differ in their last digits
with the batch, as floating-point sums do.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.maths.drawing import draw_at


@dataclass(frozen=True)
class Decoding:
    """How answers are drawn. ``stop_ids`` end an answer.

    ``max_positions``, when given, bounds prompt and answer together (the model's window).
    """

    stop_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    max_positions: int | None = None

    def room(self, prompt_length: int) -> int:
        """How many tokens the answer to a prompt may have, 0 when the prompt fills the window."""
        if self.max_positions is None:
            return self.max_new_tokens
        return max(0, min(self.max_new_tokens, self.max_positions - prompt_length))


def draw_seed(seed: int, name: str, turn: int) -> int:
    """The seed of one answer: a hash of (seed, prompt id, turn), 31 bits."""
    digest = hashlib.sha256(f"{seed}\0{name}\0{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    *,
    batch_size: int = 16,
    seeds: Sequence[int] | None = None,
) -> list[list[int]]:
    """The answers' token ids, in the prompts' order, each with its stop token if it has one.

    ``model`` is a transformers causal language model. ``seeds`` (one a prompt) are needed to
    sample.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    for indices, found in generate_batches(
        model, prompts, decoding, batch_size=batch_size, seeds=seeds
    ):
        for index, answer in zip(indices, found, strict=True):
            answers[index] = answer
    return answers


def generate_batches(
    model: Any,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    *,
    batch_size: int,
    seeds: Sequence[int] | None = None,
) -> Iterator[tuple[list[int], list[list[int]]]]:
    """As ``generate``, batch by batch: (indices of the prompts, their answers).

    Prompts of like length share a batch, the longest first.
    """
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        yield (
            indices,
            generate_batch(
                model,
                [prompts[i] for i in indices],
                decoding,
                None if seeds is None else [seeds[i] for i in indices],
            ),
        )


@torch.inference_mode()
def generate_batch(
    model: Any,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    seeds: Sequence[int] | None = None,
) -> list[list[int]]:
    """Answers to one batch, padded on the left, with a key-value cache."""
    if any(len(prompt) == 0 for prompt in prompts):
        raise ValueError("a prompt without tokens cannot be continued")
    choose = _Choice(decoding, seeds)
    answers: list[list[int]] = [[] for _ in prompts]
    room = [decoding.room(len(prompt)) for prompt in prompts]
    if min(room) < 1:
        raise ValueError("a prompt leaves no room for an answer")
    inputs, mask = _pad_left(prompts, model.device)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    rows, cache = list(range(len(prompts))), None
    while True:
        output = model(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        tokens = choose(output.logits[:, -1], rows)
        for row, token in zip(rows, tokens, strict=True):
            answers[row].append(token)
        going = [
            i
            for i, (row, token) in enumerate(zip(rows, tokens, strict=True))
            if token not in decoding.stop_ids and len(answers[row]) < room[row]
        ]
        if not going:
            return answers
        inputs = torch.tensor(tokens, device=model.device)[:, None]
        positions = positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        if len(going) < len(rows):  # finished answers leave the batch
            keep = torch.tensor(going, device=model.device)
            inputs, positions, mask = inputs[keep], positions[keep], mask[keep]
            # Not batch_select_indices: of Mamba's layers only this one is there.
            cache.reorder_cache(keep)
            rows = [rows[i] for i in going]


def _pad_left(prompts: Sequence[Sequence[int]], device: Any) -> tuple[Tensor, Tensor]:
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(list(prompt))
        mask[row, longest - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


class _Choice:
    """Picks the next token of each row from its logits."""

    def __init__(self, decoding: Decoding, seeds: Sequence[int] | None) -> None:
        self._sampling = decoding.sampling
        self._streams: list[torch.Generator] = []
        if not self._sampling.is_greedy:
            if seeds is None:
                raise ValueError("sampling needs a seed for each prompt")
            self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, logits: Tensor, rows: Sequence[int]) -> list[int]:
        if not self._streams:
            return self._sampling.tokens(logits, None).tolist()
        uniform = torch.stack([torch.rand((), generator=self._streams[row]) for row in rows])
        return draw_at(self._sampling.probabilities(logits), uniform.to(logits.device)).tolist()
