"""Servers of both shapes, as read in sglang 0.5.14 and 0.5.23 and vllm 0.30.0, without a model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Of every answer.
TOKENS, ROUNDS, ACCEPTED = 12, 4, 7


class Fake(ThreadingHTTPServer):
    """Answers with the last turn, counts what it sees, and fails as it is told.

    Attributes:
        drafts: whether it has a drafter.
        pause: seconds an answer takes.
        statuses: of the next requests, instead of answers.
        refuse: turns with this text get a 400.
        cut: bytes that errors announce and never send.
        tells: whether vLLM tells drafts by request.
        weights: where SGLang says that its drafter's are.
        launch: what else SGLang says of its launch.
        before: called with each request's body before it is answered.
    """

    daemon_threads = True

    def __init__(self, engine: str, *, drafts: bool = False, pause: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine, self.drafts, self.pause = engine, drafts, pause
        self.lock = threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.running = self.finished = self.rounds = self.accepted = 0
        self.flying = self.most_flying = 0
        self.statuses: list[int] = []
        self.refuse, self.tells, self.started, self.cut = "", False, 100.0, 0
        self.weights = ""
        self.launch: dict[str, Any] = {"tp_size": 1, "quantization": None}
        self.models = [{"id": "tiny", "parent": None}, {"id": "adapter", "parent": "tiny"}]
        self.before: Callable[[dict[str, Any]], None] = lambda body: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, start: int = 0) -> list[str]:
        """The last turns of all requests from the ``start``-th, in order."""
        return [body["messages"][-1]["content"] for body in self.bodies[start:]]

    def about(self, path: str) -> Any:
        """What a GET gives: an object, text, or None for a 404."""
        if path == "/v1/models":
            return {"data": self.models}
        if self.engine == "sglang" and path == "/server_info":
            algorithm = "DFLASH" if self.drafts else None
            return {
                "version": "0.5.23",
                "speculative_algorithm": algorithm,
                "speculative_draft_model_path": self.weights or None,
                "random_seed": self.started,
                **self.launch,
            }
        if self.engine == "vllm" and path == "/version":
            return {"version": "0.30.0"}
        if self.engine == "vllm" and path == "/metrics":
            return self.metrics()
        return None

    def metrics(self) -> str:
        """As Prometheus reads them; two engines, one of them idle."""
        lines = ["# HELP process_start_time_seconds Start time", "# TYPE x gauge"]
        lines.append(f"process_start_time_seconds {self.started}")
        for engine in (0, 1):
            share = 1 - engine
            label = f'engine="{engine}",model_name="t {{y}}"'
            counters = {"num_requests_running": self.running, "num_requests_waiting": 0}
            if self.drafts:
                counters |= {
                    "spec_decode_num_drafts_total": self.rounds,
                    "spec_decode_num_drafts_created": 17e8,
                    "spec_decode_num_accepted_tokens_total": self.accepted,
                }
            lines += [f"vllm:{name}{{{label}}} {share * n:.1f}" for name, n in counters.items()]
            for why, n in (("stop", self.finished), ("abort", 0)):
                lines.append(
                    f'vllm:request_success_total{{{label},finished_reason="{why}"}} {share * n}'
                )
        return "\n".join(lines) + "\n"

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """A chat completion."""
        message = {"role": "assistant", "content": f"re: {body['messages'][-1]['content']}"}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
        content: dict[str, Any] = {"choices": [choice], "usage": {"completion_tokens": TOKENS}}
        if self.engine == "sglang" and body.get("return_meta_info"):
            told = {"spec_verify_ct": ROUNDS, "spec_num_correct_drafts": ACCEPTED}
            choice["meta_info"] = {"completion_tokens": TOKENS, **(told if self.drafts else {})}
        if self.tells and self.drafts:
            told = {"num_spec_steps": ROUNDS, "num_accepted_draft_tokens": ACCEPTED}
            content["metrics"] = {"speculative_decoding": told}
        return content

    def book(self) -> None:
        """Count an answer."""
        with self.lock:
            self.running -= 1
            self.finished += 1
            self.rounds += ROUNDS
            self.accepted += ACCEPTED


class Handler(BaseHTTPRequestHandler):
    server: Fake

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        found = self.server.about(self.path)
        self._reply(
            404 if found is None else 200, {"detail": "Not Found"} if found is None else found
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.bodies.append(body)
            status = server.statuses.pop(0) if server.statuses else 200
            if status == 200 and server.refuse and server.refuse in body["messages"][-1]["content"]:
                status = 400
            server.running += status == 200
            server.flying += 1
            server.most_flying = max(server.most_flying, server.flying)
        server.before(body)
        time.sleep(server.pause)
        with server.lock:
            server.flying -= 1
        if status != 200:
            told = {"error": {"message": f"told to say {status}"}}
            self._reply(status, told, cut=server.cut)
            return
        self._reply(200, server.answer(body))
        # vLLM counts an answer a moment after it was sent.
        time.sleep(0.02)
        server.book()

    def _reply(self, status: int, content: Any, *, cut: int = 0) -> None:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) + cut))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(engine: str, *, drafts: bool = False, pause: float = 0.0) -> Iterator[Fake]:
    """A fake that runs."""
    server = Fake(engine, drafts=drafts, pause=pause)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
