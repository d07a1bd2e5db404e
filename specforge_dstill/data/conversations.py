"""Prompts and conversations, read from JSONL files or from a data set on the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from specforge_dstill.data.hub import hub_name, load_hub
from specforge_dstill.data.jsonl import read_objects
from specforge_dstill.data.tool_use import Objects, tool_calls_in, tools_in
from specforge_dstill.errors import UserError

#: Names that ShareGPT-like data sets use for the roles.
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
#: What SGLang, vLLM and GPT-OSS's template call an answer's reasoning.
REASONING = ("reasoning_content", "reasoning", "thinking")
SYSTEM_ROLES = ("system", "developer")
KNOWN_ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")


@dataclass(frozen=True)
class Prompt:
    """The user's side of a conversation: one or more turns and, at times, a system text."""

    id: str
    turns: tuple[str, ...]
    system: str | None = None

    def turn_name(self, index: int) -> str:
        """What the turn of an index (from 0) is called: ``id``, then ``id/2``, ``id/3``, …"""
        return self.id if index == 0 else f"{self.id}/{index + 1}"


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        finish: "length" for an answer that was cut off, else None.
        name, tool_call_id: of the tool that a message of the role "tool" comes from.
    """

    role: str
    content: str
    reasoning_content: str | None = None
    finish: str | None = None
    tool_calls: Objects | None = None
    name: str | None = None
    tool_call_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """What is stored, without the fields that are not set."""
        fields = {k: v for k, v in vars(self).items() if v is not None}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}

    def for_template(self) -> dict[str, Any]:
        """What a chat template gets to see."""
        return {k: v for k, v in self.as_dict().items() if k != "finish"}


@dataclass(frozen=True)
class Conversation:
    """Messages in order; the assistant's are the target's answers, ``tools`` what it could call."""

    id: str
    messages: tuple[Message, ...]
    tools: Objects | None = None

    def as_dict(self) -> dict[str, Any]:
        """The stored line, in SpecForge's own shape."""
        talk = {"id": self.id, "conversations": [m.as_dict() for m in self.messages]}
        return talk if self.tools is None else {**talk, "tools": list(self.tools)}


def read_prompts(source: str | Path, *, limit: int | None = None) -> list[Prompt]:
    """Prompts of a JSONL file, or of a data set named on the Hub (``hub:NAME[:split]``).

    A row has "turns", or "conversations"/"messages", of which the user's turns are taken.
    ``limit`` keeps the first rows. Mistakes raise UserError with file and line.
    """
    prompts = (_prompt(row, where, name) for row, where, name in _rows(source))
    return list(islice(_distinct(prompts, source), limit))


def read_conversations(source: str | Path, *, limit: int | None = None) -> list[Conversation]:
    """Conversations of a JSONL file (or of a data set on the Hub), with an answer in each."""
    rows = (_conversation(row, where, name) for row, where, name in _rows(source))
    return list(islice(_distinct(rows, source), limit))


def _rows(source: str | Path) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Yield (row, where it is for messages, default id)."""
    hub = hub_name(source)
    if hub is None:
        path = Path(source)
        for number, row in read_objects(path):
            yield row, f"{path}:{number}", f"{path.stem}-{number:06d}"
        return
    name, split = hub
    stem = name.rsplit("/", 1)[-1]
    for number, item in enumerate(load_hub(name, split), start=1):
        yield item, f"{name} ({split}) row {number}", f"{stem}-{number:06d}"


Row = TypeVar("Row", Prompt, Conversation)


def _distinct(rows: Iterable[Row], source: str | Path) -> Iterator[Row]:
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise UserError(f"{source}: the id {row.id!r} is used twice; ids must differ")
        seen.add(row.id)
        yield row


def _identifier(row: Mapping[str, Any], default: str) -> str:
    value = row.get("id")
    return default if value is None or value == "" else str(value)


def _prompt(row: Mapping[str, Any], where: str, default_id: str) -> Prompt:
    if "turns" in row:
        turns, system = row["turns"], _system(row, where)
    else:
        messages = _messages(row, where, wanted='"turns"')
        turns = [m.content for m in messages if m.role == "user"]
        system = next((m.content for m in messages if m.role in SYSTEM_ROLES), None)
    texts = isinstance(turns, list | tuple) and all(isinstance(t, str) and t for t in turns)
    if not turns or not texts:
        raise UserError(f'{where}: "turns" must be a list of one or more texts, none empty')
    return Prompt(_identifier(row, default_id), tuple(turns), system)


def _conversation(row: Mapping[str, Any], where: str, default_id: str) -> Conversation:
    messages = _messages(row, where, wanted='"conversations"')
    if not any(m.role == "assistant" for m in messages):
        raise UserError(
            f"{where}: the conversation has no answer of the assistant; have the target answer the "
            "file with: specforge-dstill regenerate, or take the line out"
        )
    return Conversation(_identifier(row, default_id), messages, tools_in(row, where))


def _system(row: Mapping[str, Any], where: str) -> str | None:
    system = row.get("system")
    if system is not None and not isinstance(system, str):
        raise UserError(f'{where}: "system" must be a text')
    return system


def _messages(row: Mapping[str, Any], where: str, *, wanted: str) -> tuple[Message, ...]:
    found = row.get("conversations", row.get("messages"))
    if found is None:
        keys = ", ".join(sorted(map(str, row))) or "none"
        raise UserError(f'{where}: {wanted} (or "messages") is missing; its keys are: {keys}')
    if not isinstance(found, list | tuple) or not found:
        raise UserError(f"{where}: the conversation must be a list of one or more messages")
    messages = [_message(item, f"{where}, message {i}") for i, item in enumerate(found, start=1)]
    system = _system(row, where)
    if system and not any(m.role in SYSTEM_ROLES and m.content == system for m in messages):
        messages.insert(0, Message("system", system))
    return tuple(messages)


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, Mapping):
        raise UserError(f'{where}: must be an object with "role" and "content"')
    role = item.get("role", item.get("from"))
    role = ROLES.get(role, role) if isinstance(role, str) else role
    content = item.get("content", item.get("value"))
    if role not in KNOWN_ROLES:
        raise UserError(f"{where}: unknown role {role!r}; known: {', '.join(KNOWN_ROLES)}")
    calls = tool_calls_in(item, where) if role == "assistant" else None
    content = "" if content is None and calls else content  # as servers answer
    if not isinstance(content, str):
        raise UserError(f'{where}: "content" must be a text')
    made = Message(role, content, reasoning_in(item), _text(item, "finish"), calls)
    if role != "tool":
        return made
    return replace(made, name=_text(item, "name"), tool_call_id=_text(item, "tool_call_id"))


def _text(item: Mapping[str, Any], key: str) -> str | None:
    value = item.get(key)
    return value if isinstance(value, str) else None


def reasoning_in(message: Mapping[str, Any]) -> str | None:
    """A message's reasoning under any of the names that servers and templates have for it."""
    found = (message.get(name) for name in REASONING)
    return next((text for text in found if isinstance(text, str) and text), None)
