"""The target's greedy answers to prompts, with their features: what an evaluation replays.

An answer's token ids are kept as they were generated, never tokenized again from its text. What
is already in the folder is not computed again, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specforge_dstill.data.answer_folder import AnswerFolder, StoredAnswer
from specforge_dstill.data.answer_message import answer_message
from specforge_dstill.data.answer_transformers import first_messages
from specforge_dstill.data.batches import batches_by_length
from specforge_dstill.data.capture_transformers import Features
from specforge_dstill.data.chat import TokenSample, prompt_tokens
from specforge_dstill.data.conversations import Message, Prompt
from specforge_dstill.data.generation import Decoding

_FEATURES_BATCH_TOKENS = 8192


@dataclass(frozen=True)
class AnsweredTurn:
    """One turn of a prompt with its answer; ``name`` is :meth:`Prompt.turn_name`."""

    name: str
    answer: StoredAnswer


@dataclass(frozen=True)
class GreedyTarget:
    """A target that answers greedily and gives its features.

    Attributes:
        answer: token ids of prompts -> token ids of the answers, each with its stop token.
        extract: features of whole sequences, as ``capture`` takes them.
    """

    answer: Callable[[Sequence[Sequence[int]]], list[list[int]]]
    extract: Callable[[Sequence[TokenSample]], list[Features]]


@dataclass(frozen=True)
class Conversing:
    """Answers the turns of prompts, each with the conversation so far before it.

    Attributes:
        target: loads the target; called only when an answer is missing, and then once.
        batch_size: prompts answered together.
        progress: a bar for so many answers, a context manager with ``advance(count)``.
    """

    folder: AnswerFolder
    tokenizer: Any
    template_kwargs: Mapping[str, Any]
    decoding: Decoding
    target: Callable[[], GreedyTarget]
    batch_size: int
    progress: Callable[[int], Any]

    def answer(self, prompts: Sequence[Prompt]) -> tuple[list[AnsweredTurn], list[str]]:
        """Answer what is missing.

        Returns:
            Every answered turn, in the prompts' order, and the names of those left out because
            their conversation fills the target's window.
        """
        talks = {prompt.id: first_messages(prompt) for prompt in prompts}
        answered: dict[str, StoredAnswer] = {}
        left_out = []
        for turn in range(max((len(prompt.turns) for prompt in prompts), default=0)):
            asked: dict[str, list[int]] = {}
            for prompt in prompts:
                if turn < len(prompt.turns) and prompt.id in talks:
                    talks[prompt.id].append(Message("user", prompt.turns[turn]))
                    ids = prompt_tokens(
                        self.tokenizer, talks[prompt.id], self.template_kwargs, name=prompt.id
                    )
                    if self.decoding.room(len(ids)) > 0:
                        asked[prompt.id] = ids
                    else:
                        del talks[prompt.id]
                        left_out.append(prompt.turn_name(turn))
            self._complete([ids for ids in asked.values() if self.folder.get(ids) is None])
            for prompt in prompts:
                if prompt.id not in asked:
                    continue
                found = self.folder.get(asked[prompt.id])
                assert found is not None, "just written"
                answered[prompt.turn_name(turn)] = found
                talks[prompt.id].append(self._message(found))
        names = [prompt.turn_name(turn) for prompt in prompts for turn in range(len(prompt.turns))]
        return [AnsweredTurn(name, answered[name]) for name in names if name in answered], left_out

    def _complete(self, missing: list[list[int]]) -> None:
        """Answer and keep, batch by batch, the longest prompts first."""
        distinct = list({tuple(ids): ids for ids in missing}.values())
        distinct.sort(key=len, reverse=True)
        if not distinct:
            return
        target = self.target()
        with self.progress(len(distinct)) as progress:
            for start in range(0, len(distinct), self.batch_size):
                batch = distinct[start : start + self.batch_size]
                answers = target.answer(batch)
                for prompt, sample, features in _with_features(target, batch, answers):
                    self.folder.put(prompt, sample.input_ids, features.hidden_states)
                    progress.advance(1)

    def _message(self, answer: StoredAnswer) -> Message:
        ids = answer.input_ids[answer.start :].tolist()
        return answer_message(self.tokenizer, ids, self.decoding.stop_ids)


def _with_features(
    target: GreedyTarget, prompts: Sequence[list[int]], answers: Sequence[list[int]]
) -> Iterator[tuple[list[int], TokenSample, Features]]:
    """Each prompt with its whole sequence and that sequence's features."""
    samples = []
    for prompt, answer in zip(prompts, answers, strict=True):
        mask = [0] * len(prompt) + [1] * len(answer)
        samples.append(TokenSample("", torch.tensor([*prompt, *answer]), torch.tensor(mask)))
    for batch in batches_by_length([len(sample) for sample in samples], _FEATURES_BATCH_TOKENS):
        features = target.extract([samples[index] for index in batch])
        for index, found in zip(batch, features, strict=True):
            yield prompts[index], samples[index], found
