"""What was measured against servers: a file beside results.json, from which S is formed.

A server with a drafter and the same server without one answer the same prompts, at the same
temperature and with as many requests at a time. Of a prompt of several turns (MT-Bench) only the
first is the same request on both: the next ones follow each server's own answers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import nan
from typing import Any

from specforge_dstill.evaluation.result_files import parsed

FORMAT = 1


@dataclass(frozen=True)
class Request:
    """One answer of a server.

    Attributes:
        name: of the prompt (or turn).
        tokens: that were written.
        seconds: from the request to the last token.
        rounds, accepted: its drafts, and the drafted tokens accepted of them; None where the
            engine does not tell by request.
    """

    name: str
    tokens: int
    seconds: float
    rounds: int | None = None
    accepted: int | None = None


@dataclass(frozen=True)
class Served:
    """One pass over a data set.

    Attributes:
        drafter, steps: None and 0 for the server without a drafter.
        concurrency: requests at a time.
        seconds: from the first request to the last answer.
        rounds, accepted: from the engine's own counters, for all requests together; None without
            a drafter, and where only requests tell.
        left_out: turns that the server refused.
        retried: how often a request was sent again; then ``seconds`` counts the waiting, too.
    """

    drafter: str | None
    steps: int
    data_set: str
    temperature: float
    concurrency: int
    seconds: float
    requests: tuple[Request, ...]
    rounds: int | None = None
    accepted: int | None = None
    left_out: tuple[str, ...] = ()
    retried: int = 0

    @property
    def point(self) -> tuple[str, float, int]:
        """Data set, temperature and concurrency: S is of two passes with the same."""
        return self.data_set, self.temperature, self.concurrency

    @property
    def drafted(self) -> tuple[int, int] | None:
        """(rounds, accepted) of all requests: their own sums where all tell, else as counted."""
        own = [(r.rounds, r.accepted) for r in self.requests]
        told = [(r, a) for r, a in own if r is not None and a is not None]
        if own and len(told) == len(own):
            return sum(r for r, _ in told), sum(a for _, a in told)
        if self.rounds is None or self.accepted is None:
            return None
        return self.rounds, self.accepted

    @property
    def per_token(self) -> float:
        """Seconds per output token: from sending a request to its whole answer, over its tokens.

        Reading the prompt and waiting for a place in the batch count. NaN without an answer.
        """
        tokens = sum(request.tokens for request in self.requests)
        return sum(request.seconds for request in self.requests) / tokens if tokens else nan

    def only(self, names: Collection[str]) -> Served:
        """The same without the requests of other names."""
        kept = tuple(request for request in self.requests if request.name in names)
        return replace(self, requests=kept)

    @property
    def throughput(self) -> float:
        """Output tokens a second, of all requests together."""
        return sum(request.tokens for request in self.requests) / self.seconds


def paired(one: Served, other: Served) -> tuple[Served, Served]:
    """Both with the requests that both answered: one server may refuse what another takes."""
    shared = {r.name for r in one.requests} & {r.name for r in other.requests}
    return one.only(shared), other.only(shared)


@dataclass(frozen=True)
class ServingReport:
    """All that was measured against servers.

    Attributes:
        details: how (engine and its version, target, template_kwargs, max_new_tokens, …), JSON
            values; ``note`` is shown under the table.
    """

    served: tuple[Served, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The whole; :func:`serving_from_json` gives it back."""
        served = [asdict(one) for one in self.served]
        content = {"format": FORMAT, "details": dict(self.details), "served": served}
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def serving_from_json(text: str) -> ServingReport:
    """What is behind :meth:`ServingReport.to_json`'s text.

    Raises:
        ValueError: the text is no such file, or of another format.
    """
    return parsed(text, _report, kind="the results of servers", version=FORMAT)


def _report(content: Mapping[str, Any]) -> ServingReport:
    return ServingReport(tuple(map(_served, content["served"])), content["details"])


def _served(one: Mapping[str, Any]) -> Served:
    requests = tuple(Request(**request) for request in one["requests"])
    left_out = tuple(one.get("left_out", ()))
    return Served(**{**one, "requests": requests, "left_out": left_out})
