"""Stores on a file system of fsspec: what is sent, what is kept, and what a bad network does.

``memory://`` tells no checksums, so every upload here is checked by reading it back.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from specforge_dstill.errors import UserError
from specforge_dstill.trajectory_store import (
    SampleRecord,
    StoreIdentity,
    TrajectoryReader,
    TrajectoryWriter,
    open_store,
    open_writer,
    remote_folder,
    shard_name,
    shard_samples,
)
from specforge_dstill.trajectory_store.cache import CACHE_VARIABLE, cache_folder
from specforge_dstill.trajectory_store.remote_folder import RemoteFolder
from tests.test_trajectory_store import IDENTITY, assert_same, contents, make_records, make_store

URI = "memory://bucket/store"
SHARD = shard_name(1, 4)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_files: None) -> None:
    """An empty storage, a cache folder of its own, and no waiting between tries."""
    monkeypatch.setattr(remote_folder, "DELAYS", (0.0, 0.0, 0.0))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


@pytest.fixture
def records() -> list[SampleRecord]:
    return make_records(10)


def writer_of(
    records: Sequence[SampleRecord], identity: StoreIdentity = IDENTITY, **rest: Any
) -> TrajectoryWriter:
    ids = [record.sample_id for record in records]
    words: dict[str, Any] = {"shard_size": 3, "logp_dtype": "float16", **rest}
    return open_writer(URI, identity=identity, sample_ids=ids, **words)


def collect(records: Sequence[SampleRecord], indices: Sequence[int] | None = None) -> list[int]:
    """Write what is missing, or some of it, and finish if it is all; the shards written."""
    writer = writer_of(records)
    wanted = [i for i in writer.missing() if indices is None or i in indices]
    for index in wanted:
        writer.write_shard(index, shard_samples(records, index, 3))
    if not writer.missing():
        writer.finish()
    return wanted


def elsewhere_files() -> dict[str, bytes]:
    return {
        key.removeprefix("/bucket/store/"): file.getvalue()
        for key, file in MemoryFileSystem.store.items()
    }


def put(name: str, content: bytes) -> None:
    MemoryFileSystem().pipe_file(f"/bucket/store/{name}", content)


def remove(name: str) -> None:
    MemoryFileSystem().rm_file(f"/bucket/store/{name}")


def copies() -> list[Path]:
    return sorted(cache_folder().rglob("*.arrow"))


def check_all(store: TrajectoryReader, records: Sequence[SampleRecord]) -> None:
    for record in records:
        assert_same(store[record.sample_id], record, tolerance=1e-3)


class Network:
    """Passes calls of one method on, except the first few, to which something happens."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        method: str,
        failures: int,
        happens: Callable[..., Any],
    ) -> None:
        self.calls = 0
        real = getattr(MemoryFileSystem, method)

        def call(fs: Any, *words: Any, **rest: Any) -> Any:
            self.calls += 1
            if self.calls <= failures:
                return happens(lambda *given: real(fs, *given, **rest), *words)
            return real(fs, *words, **rest)

        monkeypatch.setattr(MemoryFileSystem, method, call)


def breaks(_send: Any, *_: Any) -> None:
    raise OSError("connection reset by peer")


def cuts(send: Any, source: str, target: str) -> None:
    """Half of the file arrives, and no error."""
    half = Path(source).with_suffix(".half")
    content = Path(source).read_bytes()
    half.write_bytes(content[: len(content) // 2])
    send(str(half), target)
    half.unlink()


def flips(send: Any, source: str, target: str) -> None:
    """One byte arrives changed."""
    other = Path(source).with_suffix(".other")
    content = bytearray(Path(source).read_bytes())
    content[len(content) // 2] ^= 1
    other.write_bytes(content)
    send(str(other), target)
    other.unlink()


# --- what is there


def test_the_files_are_those_of_a_folder(tmp_path: Path, records: list[SampleRecord]) -> None:
    """Byte for byte, and a note beside each shard: any tool may copy a store there or back."""
    make_store(tmp_path / "folder", records)
    assert collect(records) == [0, 1, 2, 3]
    found = elsewhere_files()
    notes = {f"{shard_name(i, 4)}.json" for i in range(4)}
    assert notes <= found.keys()
    assert {name: found[name] for name in found.keys() - notes} == contents(tmp_path / "folder")


def test_records_come_back(records: list[SampleRecord]) -> None:
    collect(records)
    store = open_store(URI)
    assert store.uri == URI
    assert list(store) == [record.sample_id for record in records]
    assert len(store) == 10
    assert store.identity == IDENTITY
    store.check(block_size=8, samples=10)
    with pytest.raises(UserError, match="memory://bucket/store has block_size=8"):
        store.check(block_size=16)
    with pytest.raises(UserError, match="has no sample data/none"):
        store["data/none"]
    check_all(store, records)


def test_a_store_copied_there_is_read(tmp_path: Path, records: list[SampleRecord]) -> None:
    made = make_store(tmp_path / "folder", records)
    for name, content in contents(made.folder).items():
        put(name, content)
    check_all(open_store(URI), records)
    assert writer_of(records).missing() == []


def test_only_shards_that_are_used_are_fetched(
    records: list[SampleRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(records)
    store = open_store(URI)
    assert copies() == []
    store[records[4].sample_id]
    assert [path.name for path in copies()] == [SHARD]
    network = Network(monkeypatch, "get_file", 0, breaks)
    again = open_store(URI)
    again[records[3].sample_id]
    assert network.calls == 0
    check_all(again, records)
    assert network.calls == 3


def test_many_readers_share_the_copies(records: list[SampleRecord]) -> None:
    collect(records)

    def read(_: int) -> None:
        check_all(open_store(URI), records)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(16)))
    assert len(copies()) == 4
    assert not list(cache_folder().rglob("*.tmp"))


def test_another_store_under_the_same_name_has_copies_of_its_own(
    records: list[SampleRecord],
) -> None:
    collect(records)
    check_all(open_store(URI), records)
    MemoryFileSystem.store.clear()
    other = [replace(record, length=record.length + 1) for record in records]
    collect(other)
    check_all(open_store(URI), other)


# --- going on


def test_what_is_whole_is_not_done_again(records: list[SampleRecord]) -> None:
    assert collect(records, [0, 2]) == [0, 2]
    before = elsewhere_files()
    writer = writer_of(records)
    assert writer.missing() == [1, 3]
    assert [writer.missing(2, rank) for rank in range(2)] == [[1], [3]]
    assert collect(records) == [1, 3]
    assert {name: elsewhere_files()[name] for name in before} == before
    check_all(open_store(URI), records)
    assert collect(records) == []


def cut_shard() -> None:
    put(SHARD, elsewhere_files()[SHARD][:-8])


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        lambda: remove(SHARD),
        cut_shard,
        lambda: put(SHARD, b""),
    ],
    ids=["missing", "cut", "empty"],
)
def test_a_damaged_shard_is_made_again(
    records: list[SampleRecord], damage: Callable[[], None], finished: bool
) -> None:
    collect(records)
    whole = elsewhere_files()
    if not finished:
        remove("manifest.json")
    damage()
    with pytest.raises(UserError, match="is damaged: shard-00001" if finished else "not finished"):
        open_store(URI)
    assert collect(records) == [1]
    assert elsewhere_files() == whole


@pytest.mark.parametrize("note", [None, b"", b"{}", b'{"entry": 3}', b"\xff"])
def test_a_shard_without_its_note_is_not_whole(
    records: list[SampleRecord], note: bytes | None
) -> None:
    """A process that was killed between a shard and its note."""
    collect(records)
    whole = elsewhere_files()
    remove("manifest.json")
    if note is None:
        remove(f"{SHARD}.json")
    else:
        put(f"{SHARD}.json", note)
    assert collect(records) == [1]
    assert elsewhere_files() == whole


def test_the_manifest_is_made_again_from_the_notes(
    records: list[SampleRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(records)
    whole = elsewhere_files()
    remove("manifest.json")
    remove("samples.txt")
    network = Network(monkeypatch, "get_file", 0, breaks)
    assert collect(records) == []
    assert elsewhere_files() == whole
    assert network.calls == 0


def test_other_settings_do_not_continue_a_store(records: list[SampleRecord]) -> None:
    collect(records, [0])
    before = elsewhere_files()
    other = replace(IDENTITY, steps=3)
    with pytest.raises(UserError, match="was made with steps=4, this run has steps=3"):
        writer_of(records, other)
    remove("identity.json")
    with pytest.raises(UserError, match=r"shard-00000-of-00004.arrow was made with other settings"):
        writer_of(records, other).missing()
    assert {name: elsewhere_files()[name] for name in before if "shard" in name} == {
        name: content for name, content in before.items() if "shard" in name
    }


def test_a_store_that_does_not_know_its_cache_is_gone_on_with(records: list[SampleRecord]) -> None:
    collect(records, [0, 1])
    later = writer_of(records, replace(IDENTITY, cache="cd" * 32))
    assert later.missing() == [2, 3]
    for index in later.missing():
        later.write_shard(index, shard_samples(records, index, 3))
    later.finish()
    store = open_store(URI)
    check_all(store, records)
    assert store.identity.cache == ""


def test_other_library_versions_are_noted(records: list[SampleRecord]) -> None:
    collect(records, [0, 1, 2])
    newer = replace(IDENTITY, versions={"torch": "2.14.0"})
    writer = writer_of(records, newer)
    for index in writer.missing():
        writer.write_shard(index, shard_samples(records, index, 3))
    assert list(writer.finish().versions) == [{"torch": "2.13.0"}, {"torch": "2.14.0"}]
    check_all(open_store(URI), records)


# --- a bad network


@pytest.mark.parametrize("happens", [breaks, cuts, flips])
def test_an_upload_is_tried_again_until_it_is_whole(
    records: list[SampleRecord],
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[..., Any],
) -> None:
    writer = writer_of(records)
    network = Network(monkeypatch, "put_file", 3, happens)
    writer.write_shard(0, records[:3])
    assert network.calls == 5  # the shard four times, its note once
    assert not list(cache_folder().rglob("*.arrow*"))
    collect(records)
    check_all(open_store(URI), records)


def test_a_shard_that_cannot_be_sent_is_kept_and_sent_by_the_next_run(
    records: list[SampleRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(records)
    with monkeypatch.context() as broken:
        Network(broken, "put_file", 1000, breaks)
        with pytest.raises(UserError) as caught:
            writer.write_shard(0, records[:3])
    assert str(caught.value) == (
        f"{URI}/{shard_name(0, 4)} cannot be written: connection reset by peer; what was finished "
        "is kept, run the same command again"
    )
    assert [path.name for path in copies()] == [shard_name(0, 4)]
    again = writer_of(records)
    assert again.missing() == [0, 1, 2, 3]

    def none() -> Iterator[SampleRecord]:
        raise AssertionError("the records are made again")
        yield

    again.write_shard(0, none())
    assert writer_of(records).missing() == [1, 2, 3]
    assert copies() == []


def test_a_staged_shard_that_was_damaged_is_made_again(
    records: list[SampleRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(records)
    with monkeypatch.context() as broken:
        Network(broken, "put_file", 1000, breaks)
        with pytest.raises(UserError):
            writer.write_shard(0, records[:3])
    (path,) = copies()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    collect(records)
    check_all(open_store(URI), records)


@pytest.mark.parametrize("method", ["ls", "cat_file", "get_file"])
def test_reads_are_tried_again(
    records: list[SampleRecord], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    collect(records)
    network = Network(monkeypatch, method, 3, breaks)
    check_all(open_store(URI), records)
    assert network.calls > 3


def test_what_arrives_damaged_is_not_used(
    records: list[SampleRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(records)
    content = bytearray(elsewhere_files()[SHARD])
    content[len(content) // 2] ^= 1
    put(SHARD, bytes(content))
    store = open_store(URI)
    with pytest.raises(UserError, match=f"{SHARD} cannot be fetched: it does not match its check"):
        store[records[3].sample_id]
    assert copies() == []
    assert not list(cache_folder().rglob("*.tmp"))


@pytest.mark.parametrize("damage", [b"", b"ARROW1 and so on"])
def test_a_damaged_copy_is_fetched_again(records: list[SampleRecord], damage: bytes) -> None:
    collect(records)
    check_all(open_store(URI), records)
    for path in cache_folder().rglob("*.*"):
        if path.is_file():
            path.write_bytes(damage)
    check_all(open_store(URI), records)


def test_what_is_refused_is_not_tried_again(
    records: list[SampleRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_send: Any, *_: Any) -> None:
        raise PermissionError("Access Denied")

    network = Network(monkeypatch, "put_file", 1000, refuses)
    line = r"identity.json cannot be reached: Access Denied; set the credentials of memory or check"
    with pytest.raises(UserError, match=line):
        writer_of(records)
    assert network.calls == 1


def test_credentials_that_are_not_there_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoCredentialsError(Exception):
        """As botocore has one, which need not be installed."""

    def refuses(_send: Any, *_: Any) -> None:
        raise NoCredentialsError("Unable to locate credentials")

    network = Network(monkeypatch, "cat_file", 1000, refuses)
    with pytest.raises(UserError) as caught:
        open_store(URI)
    assert str(caught.value).endswith(
        "cannot be reached: Unable to locate credentials; set the credentials of memory or check "
        "the bucket"
    )
    assert network.calls == 1


def test_what_was_finished_is_no_matter_to_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    Network(monkeypatch, "cat_file", 1000, breaks)
    with pytest.raises(UserError, match=r"connection reset by peer; run the same command again$"):
        open_store(URI)


# --- opening what is not a store


def test_opening_refuses_what_is_not_complete(records: list[SampleRecord]) -> None:
    with pytest.raises(UserError, match="there is no trajectory store in memory://bucket/store"):
        open_store(URI)
    collect(records, [0])
    with pytest.raises(UserError, match=r"collection is not finished: manifest.json missing"):
        open_store(URI)
    collect(records)
    put("manifest.json", elsewhere_files()["manifest.json"][:-9])
    with pytest.raises(UserError, match=r"manifest.json is damaged"):
        open_store(URI)
    with pytest.raises(UserError, match=r"manifest.json is damaged .*; delete it and"):
        writer_of(records).missing()


def test_opening_names_the_first_damaged_shard(records: list[SampleRecord]) -> None:
    collect(records)
    remove(SHARD)
    remove(shard_name(2, 4))
    with pytest.raises(UserError, match=f"damaged: {SHARD}: missing .and 1 more shards."):
        open_store(URI)


def test_a_sample_list_that_was_changed_is_refused(records: list[SampleRecord]) -> None:
    collect(records)
    put("samples.txt", elsewhere_files()["samples.txt"].replace(b"9.ckpt", b"8.ckpt"))
    with pytest.raises(UserError, match=r"samples.txt cannot be fetched: it does not match"):
        open_store(URI)


# --- what a server tells of a file


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({}, False),
        ({"ETag": f'"{hashlib.md5(b"content").hexdigest()}"'}, True),
        ({"ETag": f'"{hashlib.md5(b"other").hexdigest()}"'}, False),
        ({"ETag": f'"{hashlib.md5(b"content").hexdigest()}-3"'}, False),
        ({"md5Hash": base64.b64encode(hashlib.md5(b"content").digest()).decode()}, True),
        ({"md5Hash": base64.b64encode(hashlib.md5(b"other").digest()).decode()}, False),
        ({"lfs": {"sha256": hashlib.sha256(b"content").hexdigest()}}, True),
        ({"lfs": {"sha256": hashlib.sha256(b"other").hexdigest()}}, False),
        ({"lfs": None, "etag": None}, False),
    ],
)
def test_a_checksum_that_the_server_tells_spares_reading_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, info: dict[str, Any], told: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    folder = RemoteFolder.at(URI)
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *_, **__: {"size": 7, **info})
    reading = Network(monkeypatch, "open", 0, breaks)
    folder.upload(path, "file", hashlib.sha256(b"content").hexdigest())
    assert reading.calls == (1 if told else 2)  # memory's own put opens the file once


def test_notes_are_plain(records: list[SampleRecord]) -> None:
    collect(records)
    note = json.loads(elsewhere_files()[f"{SHARD}.json"])
    manifest = json.loads(elsewhere_files()["manifest.json"])
    assert note["entry"] == manifest["shards"][1]
