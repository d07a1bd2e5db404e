"""Answers from an OpenAI-compatible endpoint, such as SGLang's or vLLM's server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specforge_dstill.concurrently import run_concurrently
from specforge_dstill.data.answer_transformers import LeaveOut, Save, first_messages
from specforge_dstill.data.chat import CUT_CHARACTER
from specforge_dstill.data.conversations import Conversation, Message, Prompt, reasoning_in
from specforge_dstill.data.generation import draw_seed
from specforge_dstill.errors import UserError

#: Statuses by which a server refuses one request for what is in it.
REFUSED = (400, 413, 422)
#: A request's fields and the options that fill them.
_OWN_FIELDS = {
    "model": "--model",
    "messages": "--prompts",
    "max_tokens": "--max-new-tokens",
    "max_completion_tokens": "--max-new-tokens",
    "temperature": "--temperature",
    "top_p": "--top-p",
    "seed": "--seed",
}


@dataclass(frozen=True)
class OpenAIAnswers:
    """Keeps ``concurrency`` conversations in flight; each user turn sees the earlier answers.

    A failed request is sent again up to ``retries`` times, waiting longer each time. Every
    request carries a seed made from (seed, prompt id, turn); whether the server heeds it is
    the server's affair (SGLang does with deterministic inference switched on).
    The key is read from OPENAI_API_KEY.
    """

    base_url: str
    model: str
    temperature: float
    top_p: float
    max_new_tokens: int
    seed: int
    concurrency: int = 32
    retries: int = 5
    timeout: float = 600.0
    extra_body: Mapping[str, Any] | None = None

    def answer(self, prompts: Sequence[Prompt], save: Save, leave_out: LeaveOut) -> None:
        """Answer every prompt, saving each as it ends."""
        client = self._client()
        run_concurrently(
            lambda prompt: self._one(client, prompt, save, leave_out),
            prompts,
            at_a_time=self.concurrency,
        )

    def _client(self) -> Any:
        try:
            from openai import OpenAI
        except ImportError as error:
            raise UserError("--backend openai needs the package openai: pip install openai") from (
                error
            )
        return OpenAI(
            base_url=self.base_url,
            api_key=os.environ.get("OPENAI_API_KEY") or "EMPTY",
            max_retries=self.retries,
            timeout=self.timeout,
        )

    def _one(self, client: Any, prompt: Prompt, save: Save, leave_out: LeaveOut) -> None:
        messages = first_messages(prompt)
        for turn, text in enumerate(prompt.turns):
            messages.append(Message("user", text))
            answer = self._ask(client, messages, draw_seed(self.seed, prompt.id, turn))
            if isinstance(answer, str):
                leave_out(prompt.id, answer)
                return
            messages.append(answer)
        save(Conversation(prompt.id, tuple(messages)))

    def _ask(self, client: Any, messages: Sequence[Message], seed: int) -> Message | str:
        """The answer, or why the server refuses this request."""
        import openai

        try:
            reply = client.chat.completions.create(
                model=self.model,
                messages=[{"role": m.role, "content": m.content} for m in messages],
                temperature=self.temperature,
                top_p=self.top_p,
                max_tokens=self.max_new_tokens,
                seed=seed,
                extra_body=dict(self.extra_body) if self.extra_body else None,
            )
        except openai.APIConnectionError as error:
            raise UserError(
                f"{self.base_url}: no answer (tries: {self.retries + 1}; {error}); "
                "is the server up? Finished answers are kept, run the same command to go on"
            ) from error
        except openai.APIStatusError as error:
            reason = " ".join(str(error.message).split())
            if error.status_code in REFUSED:
                return reason
            raise UserError(
                f"{self.base_url}: the server answers {error.status_code}: {reason}; "
                "finished answers are kept, run the same command to go on"
            ) from error
        choice = reply.choices[0]
        text, cut = choice.message.content or "", choice.finish_reason == "length"
        return Message(
            "assistant",
            text.rstrip(CUT_CHARACTER) if cut else text,
            reasoning_in(choice.message.to_dict()),
            "length" if cut else None,
        )


def refuse_own_fields(extra_body: Mapping[str, Any]) -> None:
    """Raises: ``UserError`` for a field that would take the place of one that is sent anyway."""
    for name, option in _OWN_FIELDS.items():
        if name in extra_body:
            raise UserError(f"--extra-body: {name} is {option}'s; give it there")
