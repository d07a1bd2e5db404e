"""Finding what answers at a URL, and whether it is what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specforge_dstill.errors import UserError
from specforge_dstill.servers.client import Client
from specforge_dstill.servers.endpoint import Endpoint
from specforge_dstill.servers.engines import Engine, model_name
from specforge_dstill.servers.sglang import SGLang
from specforge_dstill.servers.vllm import VLLM

ENGINES: dict[str, type[SGLang] | type[VLLM]] = {"sglang": SGLang, "vllm": VLLM}


def connect(
    endpoint: Endpoint,
    drafter: str | None,
    *,
    engine: str | None,
    model: str | None,
    template_kwargs: Mapping[str, Any],
) -> Client:
    """A client of the server.

    Args:
        drafter: its name, None for a server without one.
        engine: one of ENGINES; None asks the server.
        model: its name there; None for the only one.

    Raises:
        UserError: nothing of that kind answers, it has a drafter or none against what was said, or
            it has no such model.
    """
    found = _find_engine(endpoint, engine)
    if found.drafts and drafter is None:
        raise UserError(f"{endpoint.url}: has a drafter; --plain-server is one without (--server)")
    if drafter is not None and not found.drafts:
        raise UserError(
            f"{endpoint.url}: has no drafter, though --drafter {drafter} names one; start it with "
            "its drafter, or give it as --plain-server"
        )
    return Client(endpoint, found, model_name(endpoint, model), template_kwargs)


def check_alike(clients: Sequence[Client]) -> None:
    """UserError unless all have the same engine, version and model."""
    told = {f"{c.engine.name} {c.engine.version} with {c.model}" for c in clients}
    if len(told) > 1:
        raise UserError(f"the two servers differ: {' and '.join(sorted(told))}")


def _find_engine(endpoint: Endpoint, wanted: str | None) -> Engine:
    for name, engine in ENGINES.items():
        if wanted in (None, name) and (found := engine.find(endpoint)) is not None:
            return found
    raise UserError(
        f"{endpoint.url}: neither SGLang (/server_info) nor vLLM (/version) answers there"
        if wanted is None
        else f"{endpoint.url}: does not answer as {wanted}"
    )
