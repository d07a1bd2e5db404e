"""SGLang: every answer tells its drafts.

Read in 0.5.14 and 0.5.23: ``POST /v1/chat/completions`` with ``return_meta_info`` gives what
``/generate`` calls ``meta_info``; ``GET /server_info`` gives the arguments of the launch
(``/get_server_info`` before). Releases before 0.5.13 do not know ``return_meta_info``; since then
``meta_info`` has both counts wherever a draft was verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from specforge_dstill.errors import UserError
from specforge_dstill.servers.endpoint import OK, Endpoint
from specforge_dstill.servers.engines import Drafted, Snapshot

_ROUNDS, _ACCEPTED = "spec_verify_ct", "spec_num_correct_drafts"
_PATHS = ("/server_info", "/get_server_info")
#: What tells one launch from another; without a --random-seed the seed is drawn at each.
_OF_A_LAUNCH = ("version", "model_path", "random_seed", "startup_time", "launch_command")
#: Recorded with the results.
_ABOUT = (
    *("tp_size", "dp_size", "dtype", "attention_backend", "quantization"),
    *("max_running_requests", "mem_fraction_static"),
    *("speculative_algorithm", "speculative_draft_model_path"),
    *("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
)


@dataclass(frozen=True)
class SGLang:
    """A server of SGLang.

    Attributes:
        info: its own account of itself.
    """

    endpoint: Endpoint
    info: Mapping[str, Any] = field(repr=False)

    name: ClassVar[str] = "SGLang"
    options: ClassVar[Mapping[str, Any]] = {"return_meta_info": True}
    note: ClassVar[str] = (
        "τ is 1 + spec_num_correct_drafts / spec_verify_ct of SGLang's meta_info: tokens accepted "
        "past the end of an answer count."
    )

    @classmethod
    def find(cls, endpoint: Endpoint) -> SGLang | None:
        """The server at a URL; None if it is another's."""
        for path in _PATHS:
            reply = endpoint.get(path)
            info = reply.json()
            if reply.status == OK and "speculative_algorithm" in info:
                return cls(endpoint, info)
        return None

    @property
    def version(self) -> str:
        return str(self.info.get("version", "unknown"))

    @property
    def drafts(self) -> bool:
        return bool(self.info["speculative_algorithm"])

    @property
    def about(self) -> Mapping[str, Any]:
        # None is told, too: that a server is not quantized is no less known than that it is.
        return {name: self.info[name] for name in _ABOUT if name in self.info}

    def of_answer(self, content: Mapping[str, Any]) -> Drafted | None:
        """From ``choices[0].meta_info``. An answer of one token was never verified: no rounds.

        Raises:
            UserError: the server drafts, and does not tell how.
        """
        told = content["choices"][0].get("meta_info")
        if not self.drafts:
            return None
        if not isinstance(told, Mapping):
            raise UserError(self._untold("no meta_info"))
        if _ROUNDS not in told:
            return Drafted(0, 0)
        if _ACCEPTED not in told:
            raise UserError(self._untold(f"no {_ACCEPTED} in its meta_info"))
        return Drafted(int(told[_ROUNDS]), int(told[_ACCEPTED]))

    def snapshot(self) -> Snapshot:
        now = SGLang.find(self.endpoint)
        if now is None:
            raise UserError(f"{self.endpoint.url}: does not answer as SGLang any more")
        return Snapshot(repr([now.info.get(name) for name in _OF_A_LAUNCH]))

    def _untold(self, missing: str) -> str:
        return (
            f"{self.endpoint.url}: an answer of SGLang {self.version} has {missing}, from which "
            "drafts are counted; ask a server of 0.5.13 or newer, and not through a router that "
            "drops what it does not know"
        )
