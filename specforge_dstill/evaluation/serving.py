"""What was measured against servers: a file beside results.json, from which S is formed.

A server with a drafter and the same server without one answer the same prompts, at the same
temperature and with as many requests at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

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
            a drafter, and where requests tell their own.
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

    @property
    def throughput(self) -> float:
        """Output tokens a second, of all requests together."""
        return sum(request.tokens for request in self.requests) / self.seconds


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
    content = json.loads(text)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"not the results of servers of format {FORMAT}")
    served = [
        Served(**{**one, "requests": tuple(Request(**request) for request in one["requests"])})
        for one in content["served"]
    ]
    return ServingReport(tuple(served), content["details"])
