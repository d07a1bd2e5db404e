"""Fakes of both engines, and a client that does not wait long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specforge_dstill.servers import client, load_point
from specforge_dstill.servers.client import Client
from specforge_dstill.servers.endpoint import Endpoint
from specforge_dstill.servers.sglang import SGLang
from specforge_dstill.servers.vllm import VLLM
from tests.servers.fake import Fake, serving


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(load_point, "SETTLE_S", 1.0)
    monkeypatch.setattr(load_point, "_LOOK_S", 0.01)


@pytest.fixture
def sglang() -> Iterator[Fake]:
    with serving("sglang", drafts=True) as server:
        yield server


@pytest.fixture
def vllm() -> Iterator[Fake]:
    with serving("vllm", drafts=True) as server:
        yield server


def client_of(server: Fake, *, timeout: float = 5.0) -> Client:
    endpoint = Endpoint.at(server.url, timeout=timeout)
    engine = (VLLM if server.engine == "vllm" else SGLang).find(endpoint)
    assert engine is not None
    return Client(endpoint, engine, "tiny", {"enable_thinking": False})
