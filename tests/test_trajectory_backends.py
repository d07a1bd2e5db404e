"""Stores by URI: which class reads and writes them, and what a caller hears of finished shards."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from specforge_dstill.errors import UserError
from specforge_dstill.trajectory_store import (
    TrajectoryStore,
    check_finished,
    check_uri,
    open_store,
    open_writer,
    shard_samples,
)
from specforge_dstill.trajectory_store.backends import ENTRY_POINTS
from specforge_dstill.trajectory_store.remote_folder import RemoteFolder
from tests.test_trajectory_store import IDENTITY, assert_same, make_records


def write_all(uri: str, samples: int = 10, **rest: Any) -> None:
    """Records of ``make_records`` in shards of 3."""
    records = make_records(samples)
    ids = [record.sample_id for record in records]
    words: dict[str, Any] = {"shard_size": 3, "logp_dtype": "float16", **rest}
    writer = open_writer(uri, identity=IDENTITY, sample_ids=ids, **words)
    for index in writer.missing():
        writer.write_shard(index, shard_samples(records, index, 3))
    writer.finish()


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_folder_is_the_folder_store(tmp_path: Path, prefix: str) -> None:
    uri = f"{prefix}{tmp_path / 'store'}"
    write_all(uri, logp_dtype="float32")
    store = open_store(uri)
    assert isinstance(store, TrajectoryStore)
    assert store.folder == tmp_path / "store"
    for record in make_records(10):
        assert_same(store[record.sample_id], record)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Puts a package on the path, as pip would: its module, and its line among entry points."""

    def put(scheme: str, target: str, code: str) -> None:
        site = tmp_path / "site"
        about = site / f"{scheme}_store-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {scheme}-store\nVersion: 1\n"
        )
        (about / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{scheme} = {target}\n")
        (site / f"{target.partition(':')[0]}.py").write_text(code)
        monkeypatch.syspath_prepend(str(site))

    return put


# A store of another package: what is written under a name is lent by a library of its own.
LIBRARY = """
from specforge_dstill.trajectory_store import StoreWriter, TrajectoryStore

class Library:
    @staticmethod
    def open_reader(uri):
        return TrajectoryStore.open(uri.replace("library://", "SHELF/"))

    @staticmethod
    def open_writer(uri, **words):
        return StoreWriter(uri.replace("library://", "SHELF/"), **words)
"""


@pytest.mark.parametrize("scheme", ["library", "memory"])
def test_a_store_of_another_package(
    tmp_path: Path, install: Callable[[str, str, str], None], scheme: str
) -> None:
    """Found by its entry point, which wins over fsspec's own ``memory://``."""
    code = LIBRARY.replace("library", scheme).replace("SHELF", str(tmp_path / "shelf"))
    install(scheme, f"{scheme}_store:Library", code)
    write_all(f"{scheme}://poems")
    assert (tmp_path / "shelf/poems/manifest.json").exists()
    store = open_store(f"{scheme}://poems")
    for record in make_records(10):
        assert_same(store[record.sample_id], record, tolerance=1e-3)


def test_an_entry_that_cannot_be_loaded_is_named(
    install: Callable[[str, str, str], None],
) -> None:
    install("torn", "torn_store:Missing", "")
    with pytest.raises(UserError, match=r"^torn://x: torn_store:Missing, which is registered for"):
        open_store("torn://x")


@pytest.mark.parametrize(
    ("uri", "line"),
    [
        ("nowhere://x", "nowhere://x: nothing here stores under nowhere://: it is no scheme of"),
        ("abfs://x/y", "abfs://x/y needs a package that is not here: Install adlfs to access"),
    ],
)
def test_a_scheme_that_nothing_serves_is_one_line(uri: str, line: str) -> None:
    for call in (open_store, write_all):
        with pytest.raises(UserError) as caught:
            call(uri)
        assert str(caught.value).startswith(line)
        assert len(str(caught.value).splitlines()) == 1


# --- places that are not a store's


@pytest.mark.parametrize(
    ("name", "content"),
    [("capture.json", "{}"), ("manifest.json", '{"format": 2, "target_layer_ids": [1]}')],
    ids=["begun", "finished"],
)
@pytest.mark.parametrize("remote", [False, True])
def test_a_feature_cache_is_named_as_one(
    tmp_path: Path, name: str, content: str, remote: bool
) -> None:
    """To read, to write and to begin with; it is left as it was."""
    uri = f"simplecache::file://{tmp_path}" if remote else str(tmp_path)
    (tmp_path / name).write_text(content)
    for call in (open_store, write_all, check_uri):
        with pytest.raises(UserError) as caught:
            call(uri)
        assert str(caught.value) == (
            f"{uri} is a feature cache; name another folder in dstill.trajectories"
        )
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_of_other_things_is_not_collected_into(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for call in (write_all, check_uri):
        with pytest.raises(UserError, match=r"is not empty and holds no .*config.json is in it.;"):
            call(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_what_is_left_of_a_store_is_gone_on_with(tmp_path: Path) -> None:
    write_all(str(tmp_path))
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("identity.json", "manifest.json"):
        (tmp_path / name).unlink()
    check_uri(str(tmp_path))
    write_all(str(tmp_path))
    with pytest.raises(UserError, match="holds a trajectory store already"):
        check_uri(str(tmp_path), unused=True)


def not_counted() -> int:
    raise AssertionError


def test_the_hub_is_no_place_for_many_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is two commits there. What was begun there is gone on with."""
    uri, files = "hf://datasets/org/store", fsspec.filesystem("file")
    folder = RemoteFolder(uri, files, str(tmp_path))
    monkeypatch.setattr(RemoteFolder, "at", lambda _uri: folder)
    check_uri(uri, shards=lambda: 50)
    with pytest.raises(UserError, match=f"^{uri}: 51 shards would be 102 commits, .*hf upload"):
        check_uri(uri, shards=lambda: 51)
    # Nowhere else are they counted, for which every rank would list the whole cache.
    check_uri("s3://bucket/store", shards=not_counted)
    write_all(str(tmp_path))
    check_uri(uri, shards=not_counted)


@pytest.mark.parametrize("uri", ["{}", "simplecache::file://{}"])
def test_whether_a_store_is_finished_is_told_without_its_shards(tmp_path: Path, uri: str) -> None:
    where = uri.format(tmp_path / "store")
    with pytest.raises(UserError, match="there is no trajectory store in"):
        check_finished(where)
    write_all(str(tmp_path / "store"))
    check_finished(where)
    shutil.copytree(tmp_path / "store", tmp_path / "begun")
    (tmp_path / "begun/manifest.json").unlink()
    with pytest.raises(UserError, match="collection is not finished"):
        check_finished(uri.format(tmp_path / "begun"))


@pytest.mark.parametrize("uri", ["memory://x", "simplecache::memory://x"])
def test_the_memory_of_one_process_is_no_place_to_collect_into(uri: str) -> None:
    with pytest.raises(UserError, match="is the memory of one process"):
        check_uri(uri)
