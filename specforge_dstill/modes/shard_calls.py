"""The calls of ``dstill.collect.on_shard``: at least one for each shard that a run finishes.

Before a shard is in place a small file beside it says that its call is owed. A call that succeeds
removes the file, one that fails is noted in it, and the next run with the option makes it again:
so does one whose process was killed in between. A store of another package has no place for such
files: there a call is made once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from specforge_dstill.errors import UserError, reason
from specforge_dstill.modes.shard_callback import OPTION, OnShard, shard_callback
from specforge_dstill.trajectory_store import SmallFiles, shard_name, small_files

_SUFFIX = ".owed"
_WAITING = b"waiting\n"
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class ShardCalls:
    """Calls ``function`` for the shards of one store.

    Attributes:
        name: of the function, as the user gave it.
        files: beside the shards; None where there is no place for ours.
        failed: what this process's calls raised, by shard.
    """

    name: str
    function: OnShard
    uri: str
    files: SmallFiles | None
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str | None, uri: str) -> ShardCalls | None:
        """None where no function is named. Raises: ``UserError`` when there is no such function."""
        if name is None:
            return None
        return cls(name, shard_callback(name), uri, small_files(uri))

    def owe(self, index: int, shards: int) -> None:
        """Note that shard ``index`` is about to be in place, uncalled for."""
        self._note(shard_name(index, shards), _WAITING)

    def make(self, index: int, shards: int, place: Path | str) -> None:
        """Call the function; what it raises is one line, and the collection goes on."""
        shard = shard_name(index, shards)
        path = place if isinstance(place, Path) else None
        uri = str(place) if path is None else path.absolute().as_uri()
        try:
            self.function(uri=uri, index=index, path=path)
        except Exception as error:
            problem = f"{type(error).__name__}: {reason(error)}"
            self.failed[shard] = problem
            self._note(shard, problem.encode())
            print(
                f"specforge-dstill: warning: {OPTION}: {self.name} failed for {uri}: {problem}; "
                "the shard is in place",
                file=sys.stderr,
                flush=True,
            )
        else:
            self.failed.pop(shard, None)
            if self.files is not None:
                self.files.remove(shard + _SUFFIX)

    def make_up(self, shards: int, *, besides: Collection[int] = ()) -> None:
        """Make the calls that earlier runs owe.

        Args:
            besides: shards that this run makes, which are called for when they are in place.
        """
        owed = self._owed(shards)
        for index in range(shards):
            name = shard_name(index, shards)
            if self.files is not None and name in owed and index not in besides:
                self.make(index, shards, self.files.place(name))

    def settle(self, shards: int, *, patience_s: float) -> None:
        """Wait for the calls of other ranks, once every shard is there.

        Args:
            patience_s: how long to wait while none of them ends.

        Raises: ``UserError`` that counts the calls that failed, of any rank, and names the first;
        or that says that calls are still waited for.
        """
        owed = self._when_none_waits(shards, patience_s)
        failed = self.failed | {name: problem.decode() for name, problem in owed.items()}
        if not failed:
            return
        first = min(failed)
        again = (
            "run the same command again to call it for these once more"
            if self.files is not None
            else "it is not called again for these"
        )
        raise UserError(
            f"{OPTION}: {self.name} failed for {len(failed)} of the shards (first: {first}: "
            f"{failed[first]}); the trajectories in {self.uri} are complete; {again}"
        )

    def _when_none_waits(self, shards: int, patience_s: float) -> dict[str, bytes]:
        """What is owed when every call has been made. Raises: ``UserError``."""
        waiting, since = shards + 1, time.monotonic()
        while True:
            owed = self._owed(shards)
            found = sum(content == _WAITING for content in owed.values())
            if not found:
                return owed
            if found < waiting:
                waiting, since = found, time.monotonic()
            elif time.monotonic() - since > patience_s:
                raise UserError(
                    f"{OPTION}: no call has ended for {patience_s / 60:g} minutes "
                    f"(training.dist_timeout), and {found} are not made: a rank has died or hangs; "
                    f"the trajectories in {self.uri} are complete; run the same command again to "
                    "make these calls"
                )
            time.sleep(_POLL_SECONDS)

    def _note(self, shard: str, content: bytes) -> None:
        if self.files is not None:
            self.files.write(shard + _SUFFIX, content)

    def _owed(self, shards: int) -> dict[str, bytes]:
        """What is noted of calls that have not succeeded, by shard.

        Of this division into shards: nobody will make the calls of another that was here before.
        """
        if self.files is None:
            return {}
        there = set(self.files.names())
        names = [shard_name(index, shards) for index in range(shards)]
        found = {name: self.files.read(name + _SUFFIX) for name in names if name + _SUFFIX in there}
        return {name: content for name, content in found.items() if content is not None}
