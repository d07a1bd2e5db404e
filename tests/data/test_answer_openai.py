from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from specforge_dstill.data import regenerate
from specforge_dstill.data.answers_file import answer_settings, settings_path
from specforge_dstill.data.conversations import read_conversations
from specforge_dstill.errors import UserError

from .conftest import write_lines
from .test_regenerate import command


class Stub(ThreadingHTTPServer):
    """An endpoint that fails its first request, echoes the last turn and counts what it sees."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.flying = self.most_flying = 0
        self.failures = 1
        self.refuse = ""
        self.reasoning = "reasoning_content"
        self.released = threading.Event()
        self.released.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.flying += 1
            self.server.most_flying = max(self.server.most_flying, self.server.flying)
            fail = self.server.failures > 0
            self.server.failures -= 1
        self.server.released.wait(timeout=60)
        time.sleep(0.05)
        text = body["messages"][-1]["content"]
        if fail:
            self._reply(503, {"error": {"message": "warming up"}})
        elif self.server.refuse and self.server.refuse in text:
            self._reply(400, {"error": {"message": "prompt too long"}})
        else:
            message = {"role": "assistant", "content": f"re: {text}", self.server.reasoning: "hm"}
            choice = {
                "index": 0,
                "message": message,
                "finish_reason": "length" if "cut" in text else "stop",
            }
            self._reply(
                200,
                {"id": "1", "object": "chat.completion", "created": 0, "model": "m",
                 "choices": [choice]},
            )  # fmt: skip
        with self.server.lock:
            self.server.flying -= 1

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


def ask(stub_url: str, prompts: Path, output: Path, *more: object) -> int:
    return regenerate.run(
        command(
            "--backend", "openai", "--base-url", stub_url, "--model", "m", "--prompts", prompts,
            "--output", output, "--concurrency", 4, *more,
        )
    )  # fmt: skip


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows: list[dict[str, Any]] = [{"turns": [f"q{i}"]} for i in range(10)]
    rows += [{"turns": ["first", "cut"], "id": "two", "system": "be brief"}]
    return write_lines(tmp_path / "p.jsonl", rows)


def test_answers_with_retries_and_several_in_flight(
    stub: Stub, prompts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "answers.jsonl"
    kwargs = '{"enable_thinking": false}'
    ask(stub.url, prompts, output, "--extra-body", '{"top_k": 20}', "--template-kwargs", kwargs)
    found = read_conversations(output)
    assert [c.id for c in found] == [f"p-{i:06d}" for i in range(1, 11)] + ["two"]
    assert found[3].messages[1].content == "re: q3"
    two = found[-1].messages
    assert [m.content for m in two] == ["be brief", "first", "re: first", "cut", "re: cut"]
    assert [m.finish for m in two] == [None, None, None, None, "length"]
    assert two[2].reasoning_content == "hm"
    assert len(stub.bodies) == 13  # 12 turns and one retry
    assert 2 <= stub.most_flying <= 4
    body = next(b for b in stub.bodies if b["messages"][-1]["content"] == "cut")
    assert [m["content"] for m in body["messages"]] == ["be brief", "first", "re: first", "cut"]
    assert body["temperature"] == 0.7
    assert body["top_k"] == 20
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "reasoning_effort" not in body
    assert len({b["seed"] for b in stub.bodies}) == 12


LOW = '{"reasoning_effort": "low"}'


def test_the_effort_is_for_request_and_template_alike(
    stub: Stub, prompts: Path, tmp_path: Path
) -> None:
    """vLLM reads it in the request, SGLang in the template's options, capture in the settings."""
    output = tmp_path / "answers.jsonl"
    ask(stub.url, prompts, output, "--limit", 1, "--template-kwargs", LOW)
    assert stub.bodies[-1]["reasoning_effort"] == "low"
    assert stub.bodies[-1]["chat_template_kwargs"] == {"reasoning_effort": "low"}
    settings = answer_settings(output)
    assert settings is not None
    assert settings["template_kwargs"] == {"reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("extra", "more"),
    [
        (LOW, []),
        (LOW, ["--template-kwargs", '{"reasoning_effort": "high"}']),
        ('{"chat_template_kwargs": {"enable_thinking": false}}', ["--template-kwargs", LOW]),
    ],
)
def test_the_template_is_told_nothing_that_capture_would_not_know(
    prompts: Path, tmp_path: Path, extra: str, more: list[str]
) -> None:
    with pytest.raises(UserError, match=r"for the chat template.* give it to --template-kwargs"):
        ask("http://127.0.0.1:9/v1", prompts, tmp_path / "a.jsonl", "--extra-body", extra, *more)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ('{"messages": []}', "messages is --prompts's"),
        ('{"max_tokens": 4}', "max_tokens is --max-new-tokens's"),
    ],
)
def test_a_request_keeps_what_the_other_options_say(
    prompts: Path, tmp_path: Path, extra: str, words: str
) -> None:
    """The answers' settings would tell what was not asked for."""
    with pytest.raises(UserError, match=words):
        ask("http://127.0.0.1:9/v1", prompts, tmp_path / "a.jsonl", "--extra-body", extra)


@pytest.mark.parametrize("before", [{}, {"reasoning_effort": "low"}])
def test_answers_whose_request_alone_told_the_effort_are_gone_on_with(
    stub: Stub, prompts: Path, tmp_path: Path, before: dict[str, str]
) -> None:
    output = tmp_path / "answers.jsonl"
    ask(stub.url, prompts, output, "--limit", 1, "--template-kwargs", LOW)
    path = settings_path(output)
    told = {"template_kwargs": before, "extra_body": {"reasoning_effort": "low"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | told))
    ask(stub.url, prompts, output, "--template-kwargs", LOW)
    assert len(read_conversations(output)) == 11
    ask(stub.url, prompts, output, "--template-kwargs", LOW, "--extra-body", LOW)
    settings = answer_settings(output)
    assert settings is not None
    assert settings["template_kwargs"] == {"reasoning_effort": "low"}


def test_reasoning_is_kept_under_vllms_name_for_it(
    stub: Stub, prompts: Path, tmp_path: Path
) -> None:
    stub.reasoning = "reasoning"
    output = tmp_path / "answers.jsonl"
    ask(stub.url, prompts, output, "--limit", 1)
    assert read_conversations(output)[0].messages[1].reasoning_content == "hm"


def test_half_a_character_at_a_cut_is_no_part_of_the_answer(stub: Stub, tmp_path: Path) -> None:
    prompts = write_lines(tmp_path / "p.jsonl", [{"turns": ["its own \ufffd", "cut \ufffd"]}])
    output = tmp_path / "answers.jsonl"
    ask(stub.url, prompts, output)
    answers = [m.content for m in read_conversations(output)[0].messages[1::2]]
    assert answers == ["re: its own \ufffd", "re: cut "]


def test_resume_asks_only_what_is_missing(stub: Stub, prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    ask(stub.url, prompts, output, "--limit", 4)
    sent = len(stub.bodies)
    ask(stub.url, prompts, output)
    asked = [b["messages"][-1]["content"] for b in stub.bodies[sent:]]
    assert sorted(asked) == sorted([f"q{i}" for i in range(4, 10)] + ["first", "cut"])


def test_a_refused_prompt_is_left_out(
    stub: Stub, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.refuse = "q5"
    output = tmp_path / "answers.jsonl"
    assert ask(stub.url, prompts, output) == 0
    assert len(read_conversations(output)) == 10
    assert "no answer to 'p-000006': Error code: 400" in capsys.readouterr().err


def test_a_server_that_refuses_everything_is_no_success(
    stub: Stub, prompts: Path, tmp_path: Path
) -> None:
    stub.refuse = "q"
    with pytest.raises(UserError) as caught:
        ask(stub.url, prompts, tmp_path / "few.jsonl", "--limit", 3)
    assert str(caught.value).startswith("none of the 3 prompts has an answer; the first, 'p-00000")
    assert "prompt too long" in str(caught.value)

    write_lines(prompts, [{"turns": [f"q{i}"]} for i in range(100)])
    sent = len(stub.bodies)
    with pytest.raises(UserError) as caught:
        ask(stub.url, prompts, tmp_path / "many.jsonl")
    assert str(caught.value).startswith(
        "the first 20 prompts are all refused, and the rest was not"
    )
    assert len(stub.bodies) - sent < 30


def test_many_refusals_around_an_answer_stop_nothing(
    stub: Stub, prompts: Path, tmp_path: Path
) -> None:
    """They may be all that is left, and are fast: an answer of the first may still be made."""
    stub.refuse = "q"
    turns = [f"q{i}" for i in range(45)]
    turns[10] = "fine"
    write_lines(prompts, [{"turns": [turn]} for turn in turns])
    output = tmp_path / "answers.jsonl"
    assert ask(stub.url, prompts, output) == 0
    assert ask(stub.url, prompts, output) == 0
    assert len(read_conversations(output)) == 1


def test_a_server_that_fails_or_is_down(stub: Stub, prompts: Path, tmp_path: Path) -> None:
    stub.failures = 10_000
    with pytest.raises(UserError) as caught:
        ask(stub.url, prompts, tmp_path / "a.jsonl", "--retries", 0)
    assert str(caught.value).startswith(f"{stub.url}: the server answers 503: ")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError) as caught:
        ask("http://127.0.0.1:9/v1", prompts, tmp_path / "b.jsonl", "--retries", 0)
    assert str(caught.value) == (
        "http://127.0.0.1:9/v1: no answer (tries: 1; Connection error.); is the server up? "
        "Finished answers are kept, run the same command to go on"
    )


IMPATIENT = """
import sys
from specforge_dstill import cli, stopping
stopping.GRACE_S = 0.3
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_server_that_hangs_does_not_keep_the_command_from_ending(
    stub: Stub, prompts: Path, tmp_path: Path
) -> None:
    stub.released.clear()
    words = ["regenerate", "--backend", "openai", "--base-url", stub.url, "--model", "m",
             "--prompts", str(prompts), "--output", str(tmp_path / "answers.jsonl")]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, *words], stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not stub.bodies and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        _, told = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert "run the same command again to go on" in told
