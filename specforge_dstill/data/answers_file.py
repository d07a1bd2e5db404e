"""The conversations file that ``regenerate`` writes: appended, resumed, never mixed up."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from specforge_dstill.data import jsonl
from specforge_dstill.data.conversations import Conversation, Prompt, read_conversations
from specforge_dstill.data.settings import differences, read_settings
from specforge_dstill.data.template_options import in_template_kwargs
from specforge_dstill.errors import UserError
from specforge_dstill.files import json_bytes, locked, write_atomically, writing

#: Recorded but not compared: they do not change which answers are asked for.
_ONLY_RECORDED = ("versions", "date")


def settings_path(output: Path) -> Path:
    """Where the settings of ``output`` are kept."""
    return output.with_name(output.name + ".settings.json")


def answer_settings(output: Path) -> dict[str, Any] | None:
    """The settings that ``output`` was answered with, None when they are not there."""
    found = read_settings(settings_path(output))
    return None if found is None else in_template_kwargs(found)


class AnswersFile:
    """An output file opened for resuming: what is there stays, the rest is appended.

    ``settings`` are those of the first run. ``add`` may be called from several threads.
    """

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, settings: Mapping[str, Any], prompts: Sequence[Prompt]
    ) -> Iterator[AnswersFile]:
        """Hold the file alone: a second writer would have the same prompts answered twice.

        Checks that the settings and the prompts are those of the answers already there and cuts
        off a last line torn by a kill.

        Raises: ``UserError`` when they are others, and when another process holds the file.
        """
        busy = (
            f"{path}: another specforge-dstill regenerate writes it; wait for it, or choose "
            "another --output"
        )
        with locked(path.with_name(f".{path.name}.lock"), busy=busy):
            yield cls(path, settings, prompts)

    def __init__(self, path: Path, settings: Mapping[str, Any], prompts: Sequence[Prompt]) -> None:
        self._path, self._prompts, self._lock = path, prompts, Lock()
        self.settings = self._checked(settings)
        self._cut_torn_line()
        self._done = self._read_done()

    @property
    def done(self) -> frozenset[str]:
        """Ids that are answered."""
        return frozenset(self._done)

    def add(self, conversation: Conversation) -> None:
        """Append one answered conversation and hand it to the operating system."""
        with self._lock:
            with writing(self._path), self._path.open("a", encoding="utf-8") as handle:
                handle.write(jsonl.line(conversation.as_dict()))
            self._done.append(conversation.id)

    def put_in_order(self) -> None:
        """Bring the lines into the prompts' order, so that a resumed file is the same file."""
        place = {prompt.id: i for i, prompt in enumerate(self._prompts)}
        order = [place.get(name, len(place)) for name in self._done]
        if order != sorted(order):
            found = read_conversations(self._path)
            found.sort(key=lambda c: place.get(c.id, len(place)))
            jsonl.write_objects(self._path, (c.as_dict() for c in found))
            self._done = [c.id for c in found]

    def _checked(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that are kept: those of the answers already there, or the new ones."""
        old = answer_settings(self._path)
        has_answers = self._path.exists() and self._path.stat().st_size > 0
        if has_answers and old is None:
            raise UserError(
                f"{self._path}: exists and was not made by this command; choose another --output"
            )
        if has_answers and old is not None:
            changed = differences(old, settings, ignored=_ONLY_RECORDED)
            if changed:
                raise UserError(
                    f"{self._path}: holds answers made with other settings "
                    f"({changed}); choose another --output"
                )
            return old
        write_atomically(settings_path(self._path), json_bytes(settings))
        return dict(settings)

    def _cut_torn_line(self) -> None:
        """Shorten the file to its last newline; each add writes one line that ends in one."""
        if not self._path.exists():
            return
        with self._path.open("rb+") as handle:
            size = handle.seek(0, os.SEEK_END)
            kept, block = size, 1 << 16
            while kept > 0:
                start = max(0, kept - block)
                handle.seek(start)
                newline = handle.read(kept - start).rfind(b"\n")
                kept = start + newline + 1 if newline >= 0 else start
                if newline >= 0:
                    break
            if kept < size:
                handle.truncate(kept)

    def _read_done(self) -> list[str]:
        if not self._path.exists() or self._path.stat().st_size == 0:
            return []
        known = {prompt.id: prompt for prompt in self._prompts}
        done = []
        for conversation in read_conversations(self._path):
            prompt = known.get(conversation.id)
            other = None if prompt is None else _difference(conversation, prompt)
            if other is not None:
                raise UserError(
                    f"{self._path}: the answer {conversation.id!r} belongs to another {other} "
                    "than the prompt file has under this id; choose another --output"
                )
            done.append(conversation.id)
        return done


def _difference(answered: Conversation, prompt: Prompt) -> str | None:
    """What of a conversation is not the prompt's, None when all is."""
    if tuple(m.content for m in answered.messages if m.role == "user") != prompt.turns:
        return "question"
    system = next((m.content for m in answered.messages if m.role == "system"), None)
    return None if system == prompt.system else "system text"
