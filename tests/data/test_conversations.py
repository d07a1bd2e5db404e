from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from specforge_dstill.data import conversations as module
from specforge_dstill.data.conversations import (
    Conversation,
    Message,
    Prompt,
    read_conversations,
    read_prompts,
)
from specforge_dstill.data.hub import hub_name
from specforge_dstill.errors import UserError

from .conftest import write_lines


def test_prompts_get_ids_from_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text('{"turns": ["a", "b"]}\n\n{"turns": ["c"], "id": 7, "system": "s"}\n')
    assert read_prompts(path) == [
        Prompt("gsm8k-000001", ("a", "b")),
        Prompt("7", ("c",), "s"),
    ]
    assert len(read_prompts(path, limit=1)) == 1


def test_conversations_become_prompts(tmp_path: Path) -> None:
    shared = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    path = write_lines(tmp_path / "p.jsonl", [{"conversations": [*shared, *shared]}])
    assert read_prompts(path) == [Prompt("p-000001", ("q", "q"))]


@pytest.mark.parametrize("key", ["conversations", "messages"])
def test_conversations_round_trip(tmp_path: Path, key: str) -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "finish": "length"},
    ]
    path = write_lines(tmp_path / "c.jsonl", [{"id": "x", key: messages}])
    (found,) = read_conversations(path)
    assert found == Conversation(
        "x", (Message("user", "q"), Message("assistant", "a", None, "length"))
    )
    assert found.as_dict() == {"id": "x", "conversations": messages}


CALL = {"id": "1", "type": "function", "function": {"name": "sky", "arguments": {"city": "Rome"}}}
TOOLS = [{"type": "function", "function": {"name": "sky"}}]


def test_tool_calls_and_tools_round_trip(tmp_path: Path) -> None:
    """An answer after a tool's must be captured with all that the target saw before it."""
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "blue", "name": "sky", "tool_call_id": "1"},
        {"role": "assistant", "content": "a"},
    ]
    row = {"id": "x", "conversations": messages, "tools": TOOLS}
    (found,) = read_conversations(write_lines(tmp_path / "c.jsonl", [row]))
    assert found.as_dict() == row
    assert [m.for_template() for m in found.messages] == messages
    bare = {"id": "x", "conversations": [*messages[:1], *messages[3:]]}
    padded = [{**m, "tool_calls": None, "name": None} for m in bare["conversations"]]
    (found,) = read_conversations(
        write_lines(tmp_path / "d.jsonl", [{"id": "x", "messages": padded, "tools": []}])
    )
    assert found.as_dict() == bare


def test_tool_calls_as_servers_and_data_sets_write_them(tmp_path: Path) -> None:
    served = {**CALL, "function": {"name": "sky", "arguments": '{"city": "Rome"}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [served]},
    ]
    row = {"messages": messages, "tools": json.dumps(TOOLS)}
    (found,) = read_conversations(write_lines(tmp_path / "c.jsonl", [row]))
    assert found.messages[1] == Message("assistant", "", tool_calls=(CALL,))
    assert found.tools == tuple(TOOLS)
    # Its user turns can still be answered anew.
    assert read_prompts(tmp_path / "c.jsonl") == [Prompt("c-000001", ("q",))]


def test_a_system_text_beside_the_messages_is_their_first(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    own = {"from": "system", "value": "be brief"}
    rows = [
        {"system": "be brief", "conversations": talk},
        {"system": "be brief", "conversations": [own, *talk]},
        {"system": "", "conversations": talk},
    ]
    path = write_lines(tmp_path / "c.jsonl", rows)
    brief = (Message("system", "be brief"), Message("user", "q"), Message("assistant", "a"))
    assert [c.messages for c in read_conversations(path)] == [brief, brief, brief[1:]]
    assert [p.system for p in read_prompts(path)] == ["be brief", "be brief", None]


NO_ANSWER = (
    "{f}:1: the conversation has no answer of the assistant; have the target answer the file with: "
    "specforge-dstill regenerate, or take the line out"
)
ARRAY = (
    "{f}: the file is one JSON array; it needs one JSON object a line, without brackets and commas "
    "around them (jq -c '.[]' {f} writes that)"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "{f}: the file is empty; it needs one JSON object a line"),
        ("\n \n", "{f}: the file is empty; it needs one JSON object a line"),
        (
            '{"turns": ["a"]}\n{"turns": [\n',
            "{f}:2: the line is not valid JSON (Expecting value at column 1)",
        ),
        (
            '{"turns": ["a"]}\n{"turns": ["',
            "{f}:2: the line is not valid JSON (Unterminated string starting at column 12)",
        ),
        ("3\n", "{f}:1: the line is not a JSON object ({{…}})"),
        ('[{"turns": ["a"]}]\n', ARRAY),
        ('[\n  {"turns": ["a"]}\n]\n', ARRAY),
        (
            '{"turns": []}\n',
            '{f}:1: "turns" must be a list of one or more texts, none empty',
        ),
        (
            '{"turns": "hello"}\n',
            '{f}:1: "turns" must be a list of one or more texts, none empty',
        ),
        (
            '{"question": "q"}\n',
            '{f}:1: "turns" (or "messages") is missing; its keys are: question',
        ),
        ('{"turns": ["a"], "system": 3}\n', '{f}:1: "system" must be a text'),
        (
            '{"turns": ["a"], "id": "x"}\n{"turns": ["b"], "id": "x"}\n',
            "{f}: the id 'x' is used twice; ids must differ",
        ),
    ],
)
def test_bad_prompt_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_prompts(path)
    assert str(caught.value) == message.format(f=path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"conversations": []}', "{f}:1: the conversation must be a list of one or more messages"),
        (
            '{"conversations": [{"role": "user", "content": "q"}]}',
            NO_ANSWER,
        ),
        (
            '{"messages": [{"role": "wizard", "content": "q"}]}',
            "{f}:1, message 1: unknown role 'wizard'; known: " + ", ".join(module.KNOWN_ROLES),
        ),
        (
            '{"messages": [{"role": "user", "content": 3}]}',
            '{f}:1, message 1: "content" must be a text',
        ),
        (
            '{"messages": [{"role": "assistant", "content": null}]}',
            '{f}:1, message 1: "content" must be a text',
        ),
        (
            '{"messages": [{"role": "assistant", "content": "", "tool_calls": ["sky"]}]}',
            '{f}:1, message 1: "tool_calls" must be a list of objects',
        ),
        (
            '{"messages": [{"role": "assistant", "content": "a"}], "tools": "sky"}',
            '{f}:1: "tools" must be a list of objects',
        ),
        (
            '{"messages": [{"role": "assistant", "content": "a"}], "system": 3}',
            '{f}:1: "system" must be a text',
        ),
        ('{"messages": ["hi"]}', '{f}:1, message 1: must be an object with "role" and "content"'),
        (
            '{"id": "a"}',
            '{f}:1: "conversations" (or "messages") is missing; its keys are: id',
        ),
    ],
)
def test_bad_conversation_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(UserError) as caught:
        read_conversations(path)
    assert str(caught.value) == message.format(f=path)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    missing = tmp_path / "no.jsonl"
    with pytest.raises(UserError) as caught:
        read_prompts(missing)
    assert str(caught.value) == f"{missing}: cannot be read: No such file or directory"
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(UserError, match=r"b\.jsonl:1: the line is not UTF-8 text"):
        read_prompts(tmp_path / "b.jsonl")


def test_hub_names(tmp_path: Path) -> None:
    assert hub_name("mlabonne/open-perfectblend") == ("mlabonne/open-perfectblend", "train")
    assert hub_name("a/b:test") == ("a/b", "test")
    assert hub_name("hub:gsm8k:test") == ("gsm8k", "test")
    assert hub_name("prompts/gsm8k.jsonl") is None
    assert hub_name("gsm8k") is None
    assert hub_name(tmp_path) is None


def test_hub_rows_become_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"conversations": [{"from": "human", "value": "r"}, {"from": "gpt", "value": "b"}]},
    ]
    monkeypatch.setattr(module, "load_hub", lambda name, split: rows)
    found = read_prompts("mlabonne/open-perfectblend")
    assert found == [
        Prompt("open-perfectblend-000001", ("q",)),
        Prompt("open-perfectblend-000002", ("r",)),
    ]


def test_a_hub_that_breaks_off_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are streamed: most of the network's failures come while they are read."""
    import datasets

    def stream(*args: object, **kwargs: object) -> Iterator[dict[str, object]]:
        yield {"turns": ["q"]}
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(datasets, "load_dataset", stream)
    assert [prompt.turns for prompt in read_prompts("a/b", limit=1)] == [("q",)]
    with pytest.raises(UserError) as caught:
        read_prompts("a/b")
    assert str(caught.value) == "a/b (train): the Hub broke off after row 1: reset by peer"


def test_hub_that_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(UserError) as caught:
        read_prompts("a/b")
    assert str(caught.value) == (
        "a/b: no local file of this name, and the Hub gave no split 'train': no route"
    )
