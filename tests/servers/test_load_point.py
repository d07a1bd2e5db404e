"""A cell: so many requests at a time, drafts from counters and answers, and what spoils it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from specforge_dstill.data.conversations import Prompt
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.evaluation.serving import Served
from specforge_dstill.servers.load_point import LoadPoint, measure
from tests.servers.conftest import client_of
from tests.servers.fake import ACCEPTED, ROUNDS, TOKENS, Fake

PROMPTS = [Prompt(f"p-{i}", (f"q{i}",)) for i in range(8)]
TALK = [Prompt("talk", ("first", "second"), "be brief"), *PROMPTS[:3]]
WARM_UP = 4


def run(
    server: Fake,
    prompts: list[Prompt] = PROMPTS,
    *,
    at: int = 4,
    temperature: float = 0.0,
    timeout: float = 5.0,
) -> Served:
    cell = LoadPoint("student", "easy", Sampling(temperature, 20, 0.9), at)
    return measure(cell, client_of(server, timeout=timeout), prompts, max_tokens=300)


@pytest.mark.parametrize("at", [1, 3, 8])
def test_so_many_requests_are_in_flight(vllm: Fake, at: int) -> None:
    """Never more; and never fewer while there are prompts to send: here until the last ones."""
    together = threading.Barrier(at)
    vllm.before = lambda body: (
        together.wait(timeout=5) if body["max_completion_tokens"] == 300 else None
    )
    prompts = [Prompt(f"p-{i}", (f"q{i}",)) for i in range(3 * at)]
    served = run(vllm, prompts, at=at)
    # The barrier opens only where ``at`` are in flight, so that it held three times.
    assert len(served.requests) == 3 * at
    assert not together.broken
    assert len({body["cache_salt"] for body in vllm.bodies}) == 2, "of warm-up and of the cell"
    assert vllm.most_flying == at


def test_drafts_by_request(sglang: Fake) -> None:
    served = run(sglang, TALK)
    assert [r.name for r in served.requests] == ["talk", "talk/2", "p-0", "p-1", "p-2"]
    assert {(r.tokens, r.rounds, r.accepted) for r in served.requests} == {
        (TOKENS, ROUNDS, ACCEPTED)
    }
    assert (served.rounds, served.accepted) == (None, None)
    assert served.drafted == (5 * ROUNDS, 5 * ACCEPTED)
    assert (served.drafter, served.steps, served.data_set) == ("student", 1, "easy")
    assert served.per_token == pytest.approx(sum(r.seconds for r in served.requests) / 5 / TOKENS)
    assert served.seconds < sum(r.seconds for r in served.requests) + 1


@pytest.mark.parametrize("tells", [False, True])
def test_drafts_by_the_servers_counters(vllm: Fake, tells: bool) -> None:
    """Those of the warm-up, and what was counted before, are not in them."""
    vllm.rounds, vllm.accepted, vllm.finished, vllm.tells = 1000, 2000, 300, tells
    served = run(vllm, TALK)
    assert (served.rounds, served.accepted) == (5 * ROUNDS, 5 * ACCEPTED)
    assert {r.rounds for r in served.requests} == {ROUNDS if tells else None}
    assert served.drafted == (5 * ROUNDS, 5 * ACCEPTED)


def test_what_is_asked(sglang: Fake) -> None:
    """Warm-up first; then every turn after the server's own answers, with all that decides it."""
    run(sglang, TALK, at=1, temperature=1.0)
    assert sglang.asked() == ["first", "q0", "q1", "q2", "first", "second", "q0", "q1", "q2"]
    assert [body["max_completion_tokens"] for body in sglang.bodies] == [128] * 4 + [300] * 5
    second = sglang.bodies[5]
    assert [(m["role"], m["content"]) for m in second["messages"]] == [
        ("system", "be brief"),
        ("user", "first"),
        ("assistant", "re: first"),
        ("user", "second"),
    ]
    sent = {k: v for k, v in second.items() if k not in ("messages", "cache_salt")}
    assert sent == {
        "model": "tiny",
        "max_completion_tokens": 300,
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "return_meta_info": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_reasoning_effort_is_an_option_of_the_request_too(vllm: Fake) -> None:
    client = replace(client_of(vllm), template_kwargs={"reasoning_effort": "low"})
    next(client.converse(PROMPTS[0], Sampling(), max_tokens=5, salt="s"))
    assert vllm.bodies[0]["reasoning_effort"] == "low"
    assert vllm.bodies[0]["chat_template_kwargs"] == {"reasoning_effort": "low"}


def test_passing_failures_are_told(vllm: Fake) -> None:
    vllm.statuses = [200] * WARM_UP + [503, 200, 429]
    served = run(vllm, at=1)
    assert served.retried == 2
    assert len(served.requests) == len(PROMPTS)


def test_an_error_that_breaks_off_is_asked_again(vllm: Fake) -> None:
    """As a proxy's 502 may: it is no reply, like any that breaks off."""
    vllm.statuses, vllm.cut = [200] * WARM_UP + [502], 5
    assert run(vllm, at=1).retried == 1
    vllm.statuses = [502] * 40
    with pytest.raises(UserError, match=r"no answer to 'p-0' .*IncompleteRead.* 5 more expected"):
        run(vllm, at=1)


def test_a_refused_turn_is_left_out(vllm: Fake) -> None:
    vllm.refuse = "second"
    served = run(vllm, TALK)
    assert served.left_out == ("talk/2",)
    assert [r.name for r in served.requests] == ["talk", "p-0", "p-1", "p-2"]
    vllm.refuse = "q"
    with pytest.raises(UserError, match="refuses every prompt of easy: told to say 400"):
        run(vllm)


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ([500] * 40, r"no answer to 'p-0' \(tries: 4; 500: told to say 500\); finished cells"),
        ([404], "told to say 404 (--model chooses another name)"),
        ([401], "the key is OPENAI_API_KEY"),
        ([418], r"no answer to 'p-0' \(tries: 1; 418"),
    ],
)
def test_lasting_failures(vllm: Fake, statuses: list[int], said: str) -> None:
    vllm.statuses = statuses
    with pytest.raises(UserError, match=said.replace("(--", r"\(--").replace("name)", r"name\)")):
        run(vllm, at=1)


def test_a_late_answer_is_asked_for_again(vllm: Fake) -> None:
    """vLLM books the first try, too, once it notices that nobody waits for it."""
    late = [True]

    def once(body: dict[str, Any]) -> None:
        if body["max_completion_tokens"] == 300 and late.pop() if late else False:
            threading.Event().wait(0.6)

    vllm.before = once
    served = run(vllm, at=1, timeout=0.3)
    assert served.retried == 1


def test_a_restart_is_noticed(vllm: Fake, sglang: Fake) -> None:
    for server in (vllm, sglang):
        server.started = 128
        # The cell's answers may be longer than the warm-up's.
        server.before = lambda body, of=server: setattr(
            of, "started", body["max_completion_tokens"]
        )
        with pytest.raises(UserError, match="was restarted in between; this cell is not kept"):
            run(server)


def test_counters_that_fell_are_noticed(vllm: Fake) -> None:
    def fall(body: dict[str, Any]) -> None:
        if body["max_completion_tokens"] == 300:
            vllm.finished = 0

    vllm.finished, vllm.before = 10, fall
    with pytest.raises(UserError, match="its counters were reset in between"):
        run(vllm)


def test_others_on_the_server_are_noticed(vllm: Fake) -> None:
    def also(body: dict[str, Any]) -> None:
        if body["messages"][-1]["content"] == "q5":
            vllm.finished += 1

    vllm.before = also
    with pytest.raises(UserError, match=r"else uses the server \(it finished 9 requests, 8"):
        run(vllm)
    vllm.before = lambda body: None
    vllm.running = 1
    with pytest.raises(UserError, match="1 requests run on it already"):
        run(vllm)


def test_drafts_that_fell_are_noticed(vllm: Fake) -> None:
    def fall(body: dict[str, Any]) -> None:
        if body["max_completion_tokens"] == 300:
            vllm.rounds = 0

    vllm.rounds, vllm.before = 10_000, fall
    with pytest.raises(UserError, match="its counters were reset in between"):
        run(vllm)


_CHOICE = {"message": {"content": "yes"}}
_USAGE = {"completion_tokens": 3}
SHAPES: list[dict[str, Any]] = [
    {"choices": []},
    {"choices": [], "usage": _USAGE},
    {"choices": "x", "usage": _USAGE},
    {"choices": [{}], "usage": _USAGE},
    {"choices": [_CHOICE], "usage": None},
    {"choices": [_CHOICE], "usage": {"completion_tokens": "many"}},
    {"choices": [_CHOICE], "usage": {"completion_tokens": float("inf")}},
    {"choices": [_CHOICE], "usage": {"completion_tokens": -3}},
    {"choices": [_CHOICE], "usage": _USAGE, "metrics": "x"},
]


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_of_another_shape(
    vllm: Fake, monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any]
) -> None:
    monkeypatch.setattr(Fake, "answer", lambda self, body: shape)
    with pytest.raises(UserError, match="'p-0' is no chat completion of vLLM"):
        run(vllm, at=1)
