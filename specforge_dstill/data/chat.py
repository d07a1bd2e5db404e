"""From a conversation to token ids and the mask of the tokens that are scored.

Scored are an answer's tokens up to its stop token, as its text, tokenized again, gives them. A
first token that merges with the prompt's end is not scored: the target did not generate it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specforge_dstill.data.answer_spans import Render, answer_spans, answered
from specforge_dstill.data.chat_templates import OWN_TEMPLATE, named_template, template_names
from specforge_dstill.data.conversations import Conversation, Message
from specforge_dstill.data.generation_config import generation_config
from specforge_dstill.data.left_out import RefusedByTemplateError, RewrittenAnswersError
from specforge_dstill.data.targets import load_config
from specforge_dstill.errors import UserError


@dataclass(frozen=True, eq=False)
class TokenSample:
    """One tokenized conversation: ``input_ids`` [S] and ``loss_mask`` [S], both int64."""

    id: str
    input_ids: Tensor
    loss_mask: Tensor

    def __post_init__(self) -> None:
        if self.input_ids.shape != self.loss_mask.shape or self.input_ids.dim() != 1:
            raise ValueError("input_ids and loss_mask must both have the shape [S]")

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def usable(self) -> bool:
        """Whether two neighbouring tokens are scored, so that a block has an anchor."""
        return bool((self.loss_mask[:-1].bool() & self.loss_mask[1:].bool()).any())


#: What a decoder puts for bytes that are no whole character.
CUT_CHARACTER = "\ufffd"
#: Turns a conversation into a sample, or raises LeftOutError; what ``chat_encoder`` gives.
Encoder = Callable[[Conversation], TokenSample]


def stop_token_ids(
    target: str | os.PathLike[str], tokenizer: Any = None, *, trust_remote_code: bool = False
) -> tuple[int, ...]:
    """Ids that end an answer: generation config, else model config, else tokenizer.

    The tokenizer comes last: converted models are known to name a wrong token there.
    """
    found: Any = getattr(generation_config(target), "eos_token_id", None)
    if found is None:
        config = load_config(str(target), trust_remote_code=trust_remote_code)
        found = getattr(getattr(config, "text_config", None) or config, "eos_token_id", None)
    if found is None and tokenizer is not None:
        found = tokenizer.eos_token_id
    if found is None:
        raise UserError(
            f"{target}: neither its generation config nor its tokenizer names a stop token; "
            'set "eos_token_id" in generation_config.json'
        )
    return tuple(dict.fromkeys(int(i) for i in (found if isinstance(found, list) else [found])))


def chat_encoder(
    tokenizer: Any,
    *,
    template: str = OWN_TEMPLATE,
    stop_ids: Sequence[int],
    max_length: int,
    template_kwargs: Mapping[str, Any] | None = None,
    last_turn_only: bool = False,
) -> Encoder:
    """The function that tokenizes and masks conversations.

    ``template`` is "tokenizer" (its own chat template) or the name of one of SpecForge's,
    whose mask is then SpecForge's own, to the token. ``template_kwargs`` go to the chat
    template (enable_thinking, reasoning_effort). Longer samples are cut at ``max_length``.
    """
    kwargs = dict(template_kwargs or {})
    if template != OWN_TEMPLATE:
        return _specforge_encoder(
            tokenizer, named_template(template), max_length, kwargs, last_turn_only
        )
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "the target's tokenizer has no chat template; name one of SpecForge's with "
            f"--chat-template: {', '.join(template_names())}"
        )
    if not tokenizer.is_fast:
        raise UserError(
            "the target's tokenizer gives no character offsets; name one of SpecForge's "
            "templates with --chat-template"
        )

    def encode(conversation: Conversation) -> TokenSample:
        answers = answered(conversation, last_only=last_turn_only)
        offered = {} if conversation.tools is None else {"tools": list(conversation.tools)}
        render = _renderer(tokenizer, kwargs | offered, conversation.id)
        text, spans = answer_spans(conversation, answers, render)
        if answers and not spans:
            raise RewrittenAnswersError(conversation.id)
        coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = coded["input_ids"], coded["offset_mapping"]
        mask = [0] * len(ids)
        for span in spans:
            for position in span.tokens(ids, offsets, stop_ids):
                mask[position] = 1
        return _sample(conversation.id, ids, mask, max_length)

    return encode


def _renderer(tokenizer: Any, kwargs: Mapping[str, Any], name: str) -> Render:
    def render(messages: Sequence[Message], add_generation_prompt: bool) -> str:
        try:
            return tokenizer.apply_chat_template(
                [_shown(m) for m in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **kwargs,
            )
        except Exception as error:  # jinja2's and the template's own raise_exception
            raise RefusedByTemplateError(name, error) from error

    return render


def _shown(message: Message) -> dict[str, Any]:
    """A message under every name that templates have for its parts: GPT-OSS says "thinking"."""
    parts = message.for_template()
    reasoning = parts.get("reasoning_content")
    return parts if reasoning is None else {**parts, "thinking": reasoning}


def prompt_tokens(
    tokenizer: Any, messages: Sequence[Message], kwargs: Mapping[str, Any], *, name: str
) -> list[int]:
    """Token ids of a conversation as the target's own chat template renders it for generation.

    ``kwargs`` go to the template; ``name`` is the conversation's in a refusal (UserError).
    """
    text = _renderer(tokenizer, kwargs, name)(messages, True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def answer_text(tokenizer: Any, ids: Sequence[int], stop_ids: Sequence[int]) -> str:
    """The text of a generated answer, without its stop token if it ends in one.

    One cut inside a character ends before it: what stands there in its stead would give tokens
    that the target did not generate.
    """

    def without(count: int) -> str:
        return str(tokenizer.decode(ids[: len(ids) - count], skip_special_tokens=False))

    if ids[-1] in stop_ids:
        return without(1)
    # Of a character's four bytes, a token each at most, a cut leaves up to three.
    whole = (text for text in map(without, range(4)) if not text.endswith(CUT_CHARACTER))
    return next(whole, without(0))


def _specforge_encoder(
    tokenizer: Any, template: Any, max_length: int, kwargs: Mapping[str, Any], last_only: bool
) -> Encoder:
    from specforge.data.preprocessing import preprocess_conversations

    def encode(conversation: Conversation) -> TokenSample:
        try:
            coded = preprocess_conversations(
                tokenizer,
                [[m.for_template() for m in conversation.messages]],
                template,
                max_length=max_length,
                train_only_last_turn=last_only,
                tools=[list(conversation.tools or ())],
                **{key: [value] for key, value in kwargs.items()},
            )
        except Exception as error:  # jinja2's and the template's own raise_exception
            raise RefusedByTemplateError(conversation.id, error) from error
        ids, mask = coded["input_ids"][0][0], coded["loss_mask"][0][0]
        return _sample(conversation.id, ids.tolist(), mask.tolist(), max_length)

    return encode


def _sample(name: str, ids: Sequence[int], mask: Sequence[int], max_length: int) -> TokenSample:
    return TokenSample(name, torch.tensor(ids[:max_length]).long(), torch.tensor(mask[:max_length]))
