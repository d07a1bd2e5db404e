"""One request after another of a conversation, timed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specforge_dstill.data.answer_openai import REFUSED
from specforge_dstill.data.answer_transformers import first_messages
from specforge_dstill.data.conversations import Message, Prompt
from specforge_dstill.data.template_options import template_options
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.evaluation.serving import Request
from specforge_dstill.servers.endpoint import NOT_ALLOWED, OK, Endpoint, NoReplyError, Reply
from specforge_dstill.servers.engines import Engine

#: Seconds before a failed request is sent again.
PAUSES = (1.0, 4.0, 16.0)
#: What reading an object of another shape gives.
_NOT_AS_EXPECTED = (LookupError, TypeError, AttributeError, ValueError, OverflowError)
_UNKNOWN, _BUSY, _BROKEN = 404, 429, 500


def sampling_options(sampling: Sampling) -> dict[str, Any]:
    """All that decides a draw, so that no default of the server's counts; -1 is every token."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


@dataclass(frozen=True)
class Answered:
    """A turn's answer; or ``refused``, the server's reason for giving none.

    Attributes:
        retried: how often the request was sent again.
    """

    name: str
    request: Request | None
    refused: str = ""
    retried: int = 0


@dataclass(frozen=True)
class Client:
    """Asks one server's chat completions, which format prompts by the target's own template.

    Answers are not streamed, so that reading them takes next to none of this machine's time.

    Attributes:
        template_kwargs: for the chat template.
    """

    endpoint: Endpoint
    engine: Engine
    model: str
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def converse(
        self, prompt: Prompt, sampling: Sampling, *, max_tokens: int, salt: str
    ) -> Iterator[Answered]:
        """A prompt's turns, each after the server's own earlier answers, until one is refused.

        Args:
            max_tokens: the most tokens of an answer.
            salt: prompts are read anew unless they were read with the same salt.

        Raises:
            UserError: the server fails or cannot be reached.
        """
        talk = first_messages(prompt)
        for index, text in enumerate(prompt.turns):
            name = prompt.turn_name(index)
            talk.append(Message("user", text))
            body = self._body(talk, sampling, max_tokens, salt)
            reply, seconds, retried = self._send(body, name)
            if reply.status in REFUSED:
                yield Answered(name, None, reply.message, retried)
                return
            request, answer = self._read(reply.json(), name, seconds)
            yield Answered(name, request, retried=retried)
            talk.append(Message("assistant", answer))

    def _body(
        self, talk: Sequence[Message], sampling: Sampling, max_tokens: int, salt: str
    ) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [{"role": m.role, "content": m.content} for m in talk],
            "max_completion_tokens": max_tokens,
            "cache_salt": salt,
            **sampling_options(sampling),
            **self.engine.options,
            **template_options(self.template_kwargs),
        }

    def _read(self, content: Mapping[str, Any], name: str, seconds: float) -> tuple[Request, str]:
        """A completion's numbers and its text. Raises: ``UserError`` for what is none."""
        try:
            tokens = int(content["usage"]["completion_tokens"])
            answer = str(content["choices"][0]["message"]["content"] or "")
            drafted = self.engine.of_answer(content)
            rounds, accepted = (drafted.rounds, drafted.accepted) if drafted else (None, None)
            if min(tokens, rounds or 0, accepted or 0) < 0:
                raise ValueError("a count below 0")
        except _NOT_AS_EXPECTED as error:
            raise UserError(
                f"{self.endpoint.url}: the answer to {name!r} is no chat completion of "
                f"{self.engine.name} ({error!r})"
            ) from error
        return Request(name, tokens, seconds, rounds, accepted), answer

    def _send(self, body: dict[str, Any], name: str) -> tuple[Reply, float, int]:
        """The reply, the seconds that it took, and how often the request was sent again."""
        why = ""
        for retried, pause in enumerate((0.0, *PAUSES)):
            time.sleep(pause)
            start = time.perf_counter()
            try:
                reply = self.endpoint.post("/v1/chat/completions", body)
            except NoReplyError as error:
                why = str(error)
                continue
            if reply.status == OK or reply.status in REFUSED:
                return reply, time.perf_counter() - start, retried
            why = f"{reply.status}: {reply.message}"
            if reply.status == _UNKNOWN:
                raise UserError(f"{self.endpoint.url}: {why} (--model chooses another name)")
            if reply.status in NOT_ALLOWED:
                raise UserError(f"{self.endpoint.url}: {why} (the key is OPENAI_API_KEY)")
            if reply.status < _BROKEN and reply.status != _BUSY:
                break
        raise UserError(
            f"{self.endpoint.url}: no answer to {name!r} (tries: {retried + 1}; {why}); finished "
            "cells are kept, run the same command to go on"
        )
