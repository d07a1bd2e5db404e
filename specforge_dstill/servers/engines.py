"""What both engines are to a measurement, and which of them answers at a URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from specforge_dstill.errors import UserError
from specforge_dstill.servers.endpoint import OK, Endpoint


@dataclass(frozen=True)
class Drafted:
    """Drafts that were verified, and the drafted tokens accepted of them."""

    rounds: int
    accepted: int


@dataclass(frozen=True)
class Counters:
    """What a server has counted since its start, for all who use it.

    Attributes:
        drafted: None where it does not draft.
        finished: requests, aborted ones included.
        running: requests that run or wait now.
    """

    drafted: Drafted | None
    finished: int
    running: int


@dataclass(frozen=True)
class Snapshot:
    """A server at one moment.

    Attributes:
        process: differs after a restart.
        counters: None where only requests tell.
    """

    process: str
    counters: Counters | None = None


class Engine(Protocol):
    """A server that was found, and how to read its drafts.

    Attributes:
        name, version: of the engine.
        drafts: whether it has a drafter.
        about: its own settings, recorded in the results.
        note: how its drafts are counted, for the table.
        options: added to every request.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def drafts(self) -> bool: ...
    @property
    def about(self) -> Mapping[str, Any]: ...
    @property
    def note(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...

    def of_answer(self, content: Mapping[str, Any]) -> Drafted | None:
        """The drafts of one answer (a chat completion); None where it does not tell.

        Raises: ``UserError`` where nothing else tells them.
        """
        ...

    def snapshot(self) -> Snapshot:
        """The server now. Raises: ``UserError`` when it cannot be reached."""
        ...


def model_name(endpoint: Endpoint, wanted: str | None) -> str:
    """The model to ask: ``wanted``, or the only one that is served.

    Raises:
        UserError: it is not served, or there are several to choose from.
    """
    reply = endpoint.get("/v1/models")
    rows = reply.json().get("data")
    if reply.status != OK or not isinstance(rows, list):
        raise UserError(f"{endpoint.url}: is no OpenAI-compatible server (no /v1/models)")
    rows = [row for row in rows if isinstance(row, Mapping) and "id" in row]
    names = [str(row["id"]) for row in rows]
    # Adapters name the model that they are on.
    own = [str(row["id"]) for row in rows if not row.get("parent")]
    if wanted is None and len(own) == 1:
        return own[0]
    if wanted not in names:
        if not names:
            raise UserError(f"{endpoint.url}: serves no model (/v1/models names none)")
        told = "several models are served" if wanted is None else f"no model {wanted!r} is served"
        raise UserError(f"{endpoint.url}: {told}; choose with --model: {', '.join(names)}")
    return wanted
