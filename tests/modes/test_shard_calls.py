"""`dstill.collect.on_shard`: what is kept of calls that did not succeed, wherever the store is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from specforge_dstill.errors import UserError
from specforge_dstill.modes import shard_calls
from specforge_dstill.modes.shard_calls import ShardCalls
from specforge_dstill.trajectory_store import small_files

FIRST = "shard-00000-of-00002.arrow"


@pytest.fixture(params=["folder", "memory"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    MemoryFileSystem.store.clear()
    yield str(tmp_path) if request.param == "folder" else "memory://bucket/calls"
    MemoryFileSystem.store.clear()


def calls_at(uri: str, function: Callable[..., object]) -> ShardCalls:
    return ShardCalls("a:b", function, uri, small_files(uri))


def lose(**_: Any) -> None:
    raise OSError("no room")


def test_a_call_that_failed_is_made_by_the_next_run(uri: str) -> None:
    calls = calls_at(uri, lose)
    calls.owe(0, 2)
    calls.make(0, 2, "there")
    for again in (calls, calls_at(uri, lose)):
        with pytest.raises(UserError, match=f"failed for 1 of the shards .first: {FIRST}: OSError"):
            again.settle(2, patience_s=60)
    told: list[str] = []
    better = calls_at(uri, lambda *, uri, **_: told.append(uri))
    better.make_up(2, besides=[0])
    assert told == []
    better.make_up(2)
    assert [name.rpartition("/")[2] for name in told] == [FIRST]
    better.settle(2, patience_s=60)
    assert better.files is not None
    assert better.files.names() == []


def test_the_end_waits_for_the_calls_of_other_ranks(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_calls, "_POLL_SECONDS", 0.01)
    other = calls_at(uri, lambda **_: None)
    other.owe(0, 2)
    late = threading.Timer(0.2, lambda: other.make(0, 2, "there"))
    late.start()
    calls_at(uri, lose).settle(2, patience_s=60)
    late.join()
    assert other.files is not None
    assert other.files.names() == []


def test_the_end_does_not_wait_for_a_dead_rank(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_calls, "_POLL_SECONDS", 0.01)
    calls_at(uri, lose).owe(0, 2)
    with pytest.raises(UserError, match="1 are not made: a rank has died or hangs"):
        calls_at(uri, lose).settle(2, patience_s=0.05)


def test_a_store_without_a_place_for_notes_tells_of_this_process_s_calls() -> None:
    calls = ShardCalls("a:b", lose, "other://x", None)
    calls.owe(1, 2)
    calls.make(1, 2, "other://x/1")
    calls.make_up(2)
    with pytest.raises(UserError, match="it is not called again for these"):
        calls.settle(2, patience_s=60)


def test_a_call_owed_by_another_division_into_shards_is_nobodys(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards are gone, and none of the ranks would ever make it."""
    calls = calls_at(uri, lose)
    calls.owe(0, 3)
    monkeypatch.setattr(shard_calls.time, "sleep", lambda _: pytest.fail("it waits"))
    calls.make_up(2)
    calls.settle(2, patience_s=60)
