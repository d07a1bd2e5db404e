"""HTTP to a server, with errors that name it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from specforge_dstill.errors import UserError, reason

OK, NOT_ALLOWED = 200, (401, 403)
_SHORT_S = 30.0


class NoReplyError(Exception):
    """Nothing came back: no connection, or not in time."""


@dataclass(frozen=True)
class Reply:
    """What a server sent back, whatever its status."""

    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """The object in it; {} where it is none."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def message(self) -> str:
        """What an error says, on one line, as either engine words it."""
        found = self.json()
        error = found.get("error", found)
        said = error.get("message", error.get("detail")) if isinstance(error, dict) else error
        return " ".join(str(said or self.body.decode(errors="replace")).split())[:500]


@dataclass(frozen=True)
class Endpoint:
    """A server's base URL, without /v1.

    Attributes:
        timeout: seconds that an answer may take.
    """

    url: str
    timeout: float = 600.0

    @classmethod
    def at(cls, url: str, *, timeout: float) -> Endpoint:
        """With or without /v1 behind it. Raises: ``UserError`` for what is no http(s) URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{url!r} is no base URL such as http://127.0.0.1:30000")
        return cls(url.rstrip("/").removesuffix("/v1"), timeout)

    def get(self, path: str) -> Reply:
        """A short question. Raises: ``UserError`` when the server cannot be reached."""
        try:
            reply = self._send(Request(f"{self.url}{path}"), min(self.timeout, _SHORT_S))
        except NoReplyError as error:
            raise UserError(f"{self.url}: no answer ({error}); is the server up?") from error
        if reply.status in NOT_ALLOWED:
            raise UserError(f"{self.url}{path}: {reply.message}; the key is OPENAI_API_KEY")
        return reply

    def post(self, path: str, content: dict[str, Any]) -> Reply:
        """A request that may take long. Raises: :class:`NoReplyError`."""
        headers = {"Content-Type": "application/json"}
        body = json.dumps(content).encode()
        return self._send(Request(f"{self.url}{path}", body, headers), self.timeout)

    def _send(self, request: Request, timeout: float) -> Reply:
        if key := os.environ.get("OPENAI_API_KEY"):
            request.add_header("Authorization", f"Bearer {key}")
        try:
            status, response = _open(request, timeout)
            with response:
                return Reply(status, response.read())
        except TimeoutError as error:
            raise NoReplyError(f"nothing within {timeout:g} s") from error
        except (OSError, HTTPException) as error:
            # URLError hides a timeout while connecting.
            inner = getattr(error, "reason", error)
            raise NoReplyError(reason(inner) if isinstance(inner, Exception) else inner) from error


def _open(request: Request, timeout: float) -> tuple[int, HTTPResponse | HTTPError]:
    """A reply's status, whichever it is, and its body, which may still break off."""
    try:
        response: HTTPResponse = urlopen(request, timeout=timeout)
    except HTTPError as error:
        return error.code, error
    return response.status, response
