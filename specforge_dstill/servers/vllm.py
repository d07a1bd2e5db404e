"""vLLM: counters of the whole server, and drafts by answer where it was started to tell them.

Read in 0.30.0: ``GET /metrics`` has ``vllm:spec_decode_num_drafts_total`` and
``vllm:spec_decode_num_accepted_tokens_total`` where there is a drafter;
``--per-request-spec-decode-metrics summary`` adds ``metrics.speculative_decoding`` to answers. Both
are counted before an answer is cut at its end, and a step without a draft is not counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

from specforge_dstill.errors import UserError
from specforge_dstill.servers.endpoint import OK, Endpoint
from specforge_dstill.servers.engines import Counters, Drafted, Snapshot

_DRAFTS = "vllm:spec_decode_num_drafts_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_FINISHED = "vllm:request_success_total"
_RUNNING = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_STARTED = "process_start_time_seconds"
#: name{labels} value [time]
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)(?:\s+\d+)?\s*")


def read_metrics(text: str) -> dict[str, float]:
    """Prometheus' text format: each name's sum over its labels (engines, reasons of an end).

    Values that are no finite number are left out.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.fullmatch(line)
        with suppress(ValueError):
            if match and isfinite(value := float(match[2])):
                found[match[1]] = found.get(match[1], 0.0) + value
    return found


@dataclass(frozen=True)
class VLLM:
    """A server of vLLM."""

    endpoint: Endpoint
    version: str
    drafts: bool

    name: ClassVar[str] = "vLLM"
    options: ClassVar[Mapping[str, Any]] = {}
    note: ClassVar[str] = (
        "τ is 1 + accepted tokens / drafts as vLLM counts them: tokens accepted past the end of "
        "an answer count, steps without a draft do not. An interval over prompts needs a server "
        "that was started with --per-request-spec-decode-metrics summary. vLLM does not tell how "
        "it was launched (parallelism, dtype, quantization): that both servers were alike is not "
        "checked."
    )

    @classmethod
    def find(cls, endpoint: Endpoint) -> VLLM | None:
        """The server at a URL; None if it is another's.

        Raises:
            UserError: it counts nothing.
        """
        reply = endpoint.get("/version")
        if reply.status != OK or "version" not in reply.json():
            return None
        return cls(endpoint, str(reply.json()["version"]), _DRAFTS in _metrics(endpoint))

    @property
    def about(self) -> Mapping[str, Any]:
        return {}

    def of_answer(self, content: Mapping[str, Any]) -> Drafted | None:
        told = (content.get("metrics") or {}).get("speculative_decoding")
        if told is None:
            return None
        return Drafted(int(told["num_spec_steps"]), int(told["num_accepted_draft_tokens"]))

    def snapshot(self) -> Snapshot:
        found = _metrics(self.endpoint)
        drafted = None
        if _DRAFTS in found and _ACCEPTED in found:
            drafted = Drafted(int(found[_DRAFTS]), int(found[_ACCEPTED]))
        running = int(sum(found.get(name, 0) for name in _RUNNING))
        counters = Counters(drafted, int(found[_FINISHED]), running)
        return Snapshot(f"{self.version} {found.get(_STARTED, 0):.2f}", counters)


def _metrics(endpoint: Endpoint) -> dict[str, float]:
    reply = endpoint.get("/metrics")
    found = read_metrics(reply.body.decode(errors="replace")) if reply.status == OK else {}
    if _FINISHED not in found:
        raise UserError(
            f"{endpoint.url}/metrics: has no counters of vLLM, from which τ is formed; start the "
            "server without --disable-log-stats"
        )
    return found
