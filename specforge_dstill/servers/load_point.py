"""A load point: one data set at one temperature with so many requests at a time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specforge_dstill.concurrently import run_concurrently
from specforge_dstill.data.conversations import Prompt
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.interleaved import WARM_UP_RUNS, WARM_UP_TOKENS
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.evaluation.serving import Served
from specforge_dstill.servers.client import Answered, Client
from specforge_dstill.servers.engines import Drafted, Snapshot

#: A server books a request's end a moment after its answer, and ends aborted ones in a while.
SETTLE_S, _LOOK_S = 10.0, 0.05


@dataclass(frozen=True)
class LoadPoint:
    """What is measured together, on one server.

    Attributes:
        drafter: its name, None for the server without one.
        concurrency: requests at a time, as many as there are prompts at the most.
    """

    drafter: str | None
    data_set: str
    sampling: Sampling
    concurrency: int

    def __str__(self) -> str:
        who = self.drafter or "without a drafter"
        return f"{who}, {self.data_set}, T = {self.sampling.temperature:g}, C = {self.concurrency}"


def measure(
    cell: LoadPoint,
    client: Client,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    update: Callable[[], None] = lambda: None,
) -> Served:
    """Warm up, then ask everything with ``cell.concurrency`` conversations at a time.

    Args:
        max_tokens: the most tokens of an answer.
        update: called after each turn, from several threads.

    Raises:
        UserError: the server fails, was restarted, serves others, or refuses every prompt.
    """
    before = _warm_up(cell, client, prompts, max_tokens)
    if before.counters and before.counters.running:
        raise UserError(_others(client, f"{before.counters.running} requests run on it already"))
    salt, start = secrets.token_hex(8), time.perf_counter()

    def converse(prompt: Prompt) -> list[Answered]:
        turns = []
        for turn in client.converse(prompt, cell.sampling, max_tokens=max_tokens, salt=salt):
            turns.append(turn)
            update()
        return turns

    talks = run_concurrently(converse, prompts, at_a_time=cell.concurrency)
    seconds = time.perf_counter() - start
    turns = [turn for talk in talks for turn in talk]
    drafted = _counted(client, before, turns)
    requests = tuple(turn.request for turn in turns if turn.request is not None)
    if not requests:
        raise UserError(
            f"{client.endpoint.url}: refuses every prompt of {cell.data_set}: {turns[0].refused}"
        )
    return Served(
        drafter=cell.drafter,
        steps=0 if cell.drafter is None else 1,
        data_set=cell.data_set,
        temperature=cell.sampling.temperature,
        concurrency=cell.concurrency,
        seconds=seconds,
        requests=requests,
        rounds=None if drafted is None else drafted.rounds,
        accepted=None if drafted is None else drafted.accepted,
        left_out=tuple(turn.name for turn in turns if turn.request is None),
        retried=sum(turn.retried for turn in turns),
    )


def _warm_up(
    cell: LoadPoint, client: Client, prompts: Sequence[Prompt], max_tokens: int
) -> Snapshot:
    """First turns of the first prompts, again and again if there are few; the server then."""
    before = client.engine.snapshot()
    chosen = [prompts[run % len(prompts)] for run in range(WARM_UP_RUNS)]
    most, salt = min(max_tokens, WARM_UP_TOKENS), secrets.token_hex(8)
    turns = run_concurrently(
        lambda prompt: next(client.converse(prompt, cell.sampling, max_tokens=most, salt=salt)),
        chosen,
        at_a_time=min(cell.concurrency, WARM_UP_RUNS),
    )
    return _settled(client, before, turns)


def _settled(client: Client, before: Snapshot, turns: Sequence[Answered]) -> Snapshot:
    """The server as soon as it has booked the ends of ``turns`` and rests, or after a while.

    Raises:
        UserError: it is not the process that it was.
    """
    finished = sum(turn.request is not None for turn in turns)
    finished += before.counters.finished if before.counters else 0
    end = time.monotonic() + SETTLE_S
    while True:
        found = client.engine.snapshot()
        now = found.counters
        if found.process != before.process:
            raise UserError(f"{client.endpoint.url}: was restarted in between; {_AGAIN}")
        rests = now is None or (now.running == 0 and now.finished >= finished)
        if rests or time.monotonic() > end:
            return found
        time.sleep(_LOOK_S)


def _counted(client: Client, before: Snapshot, turns: Sequence[Answered]) -> Drafted | None:
    """The drafts that the server counted meanwhile; None where it does not.

    Raises:
        UserError: it was restarted, or counted others' requests.
    """
    start, after = before.counters, _settled(client, before, turns)
    if start is None or after.counters is None:
        return None
    # A request that got no answer in time is aborted, and counts as finished.
    sent = len(turns) + sum(turn.retried for turn in turns)
    found = after.counters.finished - start.finished
    drafted = _between(start.drafted, after.counters.drafted)
    fell = drafted is not None and min(drafted.rounds, drafted.accepted) < 0
    if fell or found < sum(turn.request is not None for turn in turns):
        raise UserError(f"{client.endpoint.url}: its counters were reset in between; {_AGAIN}")
    if found > sent:
        raise UserError(_others(client, f"it finished {found} requests, {sent} of them ours"))
    return drafted


def _between(start: Drafted | None, end: Drafted | None) -> Drafted | None:
    if start is None or end is None:
        return None
    return Drafted(end.rounds - start.rounds, end.accepted - start.accepted)


_AGAIN = "this cell is not kept, run the same command to measure it again"


def _others(client: Client, seen: str) -> str:
    return f"{client.endpoint.url}: somebody else uses the server ({seen}); {_AGAIN}"
