"""The trajectory store: round trips, resumption, damage, refusals, sizes."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import specforge_dstill.trajectory_store as package
from specforge_dstill.errors import UserError
from specforge_dstill.maths.trajectory import Trajectory
from specforge_dstill.token_hash import token_hash
from specforge_dstill.trajectory_store import (
    SampleRecord,
    StoreIdentity,
    StoreWriter,
    TrajectoryStore,
    partition,
    shard_count,
    shard_name,
    shard_samples,
    verify_store,
)
from specforge_dstill.trajectory_store.shard import Shard

IDENTITY = StoreIdentity(
    block_size=8,
    steps=4,
    top_k=3,
    record="commit",
    commit="greedy",
    temperature=1.0,
    mask_token_id=63,
    vocab_size=64,
    max_length=128,
    anchors_per_sample=None,
    seed=7,
    teacher_hash="ab" * 32,
    draft_config={"num_hidden_layers": 2, "dflash_config": {"target_layer_ids": [1, 2]}},
    versions={"torch": "2.13.0"},
)


def make_record(index: int, blocks: int, identity: StoreIdentity = IDENTITY) -> SampleRecord:
    """A record of random content that depends on ``index`` alone."""
    draw = torch.Generator().manual_seed(index)
    size, length = identity.block_size, blocks + 20
    top = (blocks, identity.passes, size - 1, identity.top_k)

    def integers(low: int, high: int, shape: Sequence[int]) -> torch.Tensor:
        return torch.randint(low, high, tuple(shape), generator=draw)

    commit_pass = integers(1, identity.steps + 1, (blocks, size))
    commit_pass[:, 0] = 0
    top_ids = integers(-1, identity.vocab_size, top)
    top_logp = (-9.0 * torch.rand(top, generator=draw)).masked_fill(top_ids < 0, -torch.inf)
    return SampleRecord(
        sample_id=f"data/{index // 100:05d}/{index:08d}.ckpt",
        token_hash=token_hash(tokens_of(index)),
        length=length,
        anchors=torch.arange(blocks) + 2,
        trajectory=Trajectory(
            endpoint=integers(0, identity.vocab_size, (blocks, size)),
            commit_pass=commit_pass,
            top_ids=top_ids,
            top_logp=top_logp,
        ),
    )


def tokens_of(index: int) -> list[int]:
    return [index, index + 1, index + 2]


def make_records(samples: int, identity: StoreIdentity = IDENTITY) -> list[SampleRecord]:
    return [make_record(i, blocks=i % 4, identity=identity) for i in range(samples)]


def make_writer(
    folder: Path, records: Sequence[SampleRecord], identity: StoreIdentity = IDENTITY, **rest: Any
) -> StoreWriter:
    ids = [record.sample_id for record in records]
    return StoreWriter(folder, identity=identity, sample_ids=ids, **{"shard_size": 3, **rest})


def fill(writer: StoreWriter, records: Sequence[SampleRecord], indices: Sequence[int]) -> None:
    for index in indices:
        writer.write_shard(index, shard_samples(records, index, writer.plan.shard_size))


def make_store(
    folder: Path, records: Sequence[SampleRecord], identity: StoreIdentity = IDENTITY, **rest: Any
) -> TrajectoryStore:
    writer = make_writer(folder, records, identity, **rest)
    fill(writer, records, writer.missing())
    writer.finish()
    return TrajectoryStore.open(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same(found: SampleRecord, made: SampleRecord, *, tolerance: float = 0.0) -> None:
    assert found.sample_id == made.sample_id
    assert found.token_hash == made.token_hash
    assert found.length == made.length
    for name in ("endpoint", "commit_pass", "top_ids"):
        one, other = getattr(found.trajectory, name), getattr(made.trajectory, name)
        assert one.dtype == torch.int64
        assert torch.equal(one, other), name
    assert torch.equal(found.anchors, made.anchors)
    one, other = found.trajectory.top_logp, made.trajectory.top_logp
    assert one.dtype == torch.float32
    torch.testing.assert_close(one, other, rtol=tolerance, atol=0.0)


@pytest.fixture
def records() -> list[SampleRecord]:
    return make_records(10)


@pytest.fixture
def store(tmp_path: Path, records: list[SampleRecord]) -> TrajectoryStore:
    return make_store(tmp_path / "store", records)


# -- what goes in comes out --------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    blocks=st.lists(st.integers(0, 5), min_size=0, max_size=7),
    block_size=st.integers(2, 17),
    steps=st.integers(1, 16),
    top_k=st.integers(0, 5),
    full=st.booleans(),
    half=st.booleans(),
    shard_size=st.integers(1, 8),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    blocks: list[int],
    block_size: int,
    steps: int,
    top_k: int,
    full: bool,
    half: bool,
    shard_size: int,
) -> None:
    identity = replace(
        IDENTITY,
        block_size=block_size,
        steps=steps,
        top_k=top_k,
        record="full" if full else "commit",
    )
    made = [make_record(i, n, identity) for i, n in enumerate(blocks)]
    store = make_store(
        tmp_path_factory.mktemp("store"),
        made,
        identity,
        shard_size=shard_size,
        logp_dtype="float16" if half else "float32",
    )
    assert list(store) == [record.sample_id for record in made]
    assert store.manifest.total_blocks == sum(blocks)
    for record in made:
        assert_same(store[record.sample_id], record, tolerance=2**-11 if half else 0.0)


def test_a_store_gives_its_identity_and_its_samples(
    store: TrajectoryStore, records: list[SampleRecord]
) -> None:
    assert store.identity == IDENTITY
    assert len(store) == 10
    assert records[3].sample_id in store
    assert "data/none.ckpt" not in store
    with pytest.raises(UserError, match=r"store has no sample data/none\.ckpt"):
        store["data/none.ckpt"]


def test_a_record_is_refused_for_other_tokens(
    store: TrajectoryStore, records: list[SampleRecord]
) -> None:
    sample_id = records[4].sample_id
    assert_same(store.record_for(sample_id, tokens_of(4)), records[4], tolerance=2**-11)
    with pytest.raises(UserError, match=f"sample {sample_id} has other tokens now"):
        store.record_for(sample_id, torch.tensor(tokens_of(5)))


def test_a_record_owns_its_memory(store: TrajectoryStore, records: list[SampleRecord]) -> None:
    sample_id = records[3].sample_id
    store[sample_id].trajectory.endpoint.zero_()
    assert_same(store[sample_id], records[3], tolerance=2**-11)


def test_small_log_probabilities_become_minus_infinity_in_float16(tmp_path: Path) -> None:
    record = make_record(1, blocks=1)
    values = torch.tensor([-65504.0, -65505.0, -65519.0, -1e30, -torch.inf, -1e-9, 0.0])
    record.trajectory.top_logp[0, 0, :, 0] = values
    found = make_store(tmp_path, [record])[record.sample_id].trajectory.top_logp[0, 0, :, 0]
    lost = [-torch.inf] * 4
    torch.testing.assert_close(found, torch.tensor([-65504.0, *lost, 0.0, 0.0]))
    assert found.tolist()[1:5] == lost


def test_rows_spread_over_several_batches(
    tmp_path: Path, records: list[SampleRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specforge_dstill.trajectory_store.format._BATCH_BYTES", 500)
    store = make_store(tmp_path, records, shard_size=10)
    with pa.ipc.open_file(tmp_path / shard_name(0, 1)) as reader:
        assert reader.num_record_batches > 2
    for record in records:
        assert_same(store[record.sample_id], record, tolerance=2**-11)


def test_more_shards_than_may_be_mapped(
    tmp_path: Path, records: list[SampleRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specforge_dstill.trajectory_store.reader._MAPPED_SHARDS", 2)
    store = make_store(tmp_path, records, shard_size=1)
    kept = [store[record.sample_id] for record in records + records[::-1]]
    for found, record in zip(kept, records + records[::-1], strict=True):
        assert_same(found, record, tolerance=2**-11)


def test_many_threads_read_one_store(store: TrajectoryStore, records: list[SampleRecord]) -> None:
    def read(seed: int) -> None:
        draw = random.Random(seed)
        for record in draw.choices(records, k=50):
            assert_same(store[record.sample_id], record, tolerance=2**-11)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(16)))


# -- the files ---------------------------------------------------------------------------------


def test_datasets_opens_the_shards(store: TrajectoryStore, records: list[SampleRecord]) -> None:
    datasets = pytest.importorskip("datasets")
    paths = [str(store.folder / entry.name) for entry in store.manifest.shards]
    cache = store.folder.parent / "datasets-cache"
    rows = datasets.load_dataset("arrow", data_files=paths, split="train", cache_dir=str(cache))
    assert rows["sample_id"][:] == [record.sample_id for record in records]
    for row, record in zip(rows, records, strict=True):
        trajectory = record.trajectory
        assert row["length"] == record.length
        assert row["anchors"] == record.anchors.tolist()
        assert row["commit_pass"] == trajectory.commit_pass.flatten().tolist()
        assert row["top_ids"] == trajectory.top_ids.flatten().tolist()
        logp = torch.tensor(row["top_logp"], dtype=torch.float32)
        torch.testing.assert_close(logp, trajectory.top_logp.flatten(), rtol=2**-11, atol=0.0)


def test_a_shard_alone_can_be_understood(
    store: TrajectoryStore, records: list[SampleRecord]
) -> None:
    shard = Shard(store.folder / shard_name(1, 4))
    form = shard.form
    assert (form.block_size, form.steps, form.passes, form.top_k) == (8, 4, 1, 3)
    assert (form.shard, form.shards, form.versions) == (1, 4, IDENTITY.versions)
    assert_same(shard.record(2), records[5], tolerance=2**-11)


def test_bytes_a_block(tmp_path: Path) -> None:
    """B=16, k=16, committing pass, float16: at most 1,600 bytes a block on disk, all included."""
    identity = replace(IDENTITY, block_size=16, steps=8, top_k=16, vocab_size=1000)
    made = [make_record(i, 16, identity) for i in range(16)]
    store = make_store(tmp_path, made, identity, shard_size=64)
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("*.arrow"))
    assert store.manifest.total_bytes == on_disk
    assert on_disk / store.manifest.total_blocks <= 1600


def test_nothing_is_pickled(store: TrajectoryStore) -> None:
    for name, content in contents(store.folder).items():
        starts = {".arrow": b"ARROW1", ".json": b"{", ".txt": b"data/00000/00000000.ckpt\n"}
        assert content.startswith(starts[Path(name).suffix])
    source = Path(package.__file__).parent
    for path in source.glob("*.py"):
        code = path.read_text()
        assert "import pickle" not in code
        assert "torch.save" not in code
        assert "torch.load" not in code


def test_shards_are_a_pure_function_of_samples_and_size() -> None:
    assert shard_name(3, 40) == "shard-00003-of-00040.arrow"
    assert [shard_count(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [list(shard_samples("abcdefg", i, 3)) for i in range(3)] == [
        ["a", "b", "c"],
        ["d", "e", "f"],
        ["g"],
    ]
    with pytest.raises(ValueError, match="no shard 3 among 3"):
        shard_name(3, 3)


def test_partition_is_disjoint_complete_and_even() -> None:
    work = range(shard_count(10_000_000, 64))
    shares = [partition(work, 1000, rank) for rank in range(1000)]
    assert sorted(index for share in shares for index in share) == list(work)
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_number_of_ranks_makes_the_same_files(
    tmp_path: Path, store: TrajectoryStore, records: list[SampleRecord], ranks: int
) -> None:
    folder = tmp_path / "ranks"
    writers = [make_writer(folder, records) for _ in range(ranks)]
    shares = [writer.missing(ranks, rank) for rank, writer in enumerate(writers)]
    for writer, share in reversed(list(zip(writers, shares, strict=True))):
        fill(writer, records, share)
    writers[-1].finish()
    assert contents(folder) == contents(store.folder)


def test_many_writers_start_at_once(tmp_path: Path, records: list[SampleRecord]) -> None:
    start = threading.Barrier(8)

    def claim(_: int) -> None:
        start.wait()
        make_writer(tmp_path / "store", records)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim, range(8)))
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["identity.json"]


# -- interrupted and resumed -------------------------------------------------------------------


def test_a_second_run_does_what_is_missing(tmp_path: Path, records: list[SampleRecord]) -> None:
    writer = make_writer(tmp_path, records)
    assert writer.missing() == [0, 1, 2, 3]
    fill(writer, records, [0, 2])
    again = make_writer(tmp_path, records)
    assert again.missing() == [1, 3]
    assert [again.missing(2, rank) for rank in range(2)] == [[1], [3]]
    with pytest.raises(UserError, match=r"not finished: 2 of 4 shards missing; run --mode dstill"):
        again.finish()
    with pytest.raises(UserError, match=r"not finished: 2 of 4 shards missing; run --mode dstill"):
        TrajectoryStore.open(tmp_path)
    fill(again, records, [1, 3])
    with pytest.raises(UserError, match=r"not finished: manifest\.json missing"):
        TrajectoryStore.open(tmp_path)
    again.finish()
    assert len(TrajectoryStore.open(tmp_path)) == 10
    assert make_writer(tmp_path, records).missing() == []


def test_finishing_twice_changes_nothing(
    store: TrajectoryStore, records: list[SampleRecord]
) -> None:
    before = contents(store.folder)
    make_writer(store.folder, records).finish()
    assert contents(store.folder) == before


def test_leftovers_of_killed_writers_are_removed(
    tmp_path: Path, records: list[SampleRecord]
) -> None:
    left = tmp_path / f".{shard_name(0, 4)}.0123456789abcdef.tmp"
    left.write_bytes(b"ARROW1")
    make_store(tmp_path, records)
    assert not left.exists()
    assert sorted(contents(tmp_path)) == sorted(
        ["identity.json", "manifest.json", "samples.txt", *(shard_name(i, 4) for i in range(4))]
    )


@pytest.mark.parametrize("damage", ["delete", "truncate", "empty", "garbage", "swap"])
def test_a_damaged_shard_is_found_and_made_anew(
    store: TrajectoryStore, records: list[SampleRecord], damage: str
) -> None:
    before = contents(store.folder)
    path = store.folder / shard_name(2, 4)
    if damage == "delete":
        path.unlink()
    elif damage == "truncate":
        os.truncate(path, path.stat().st_size // 2)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "garbage":
        path.write_bytes(b"x" * path.stat().st_size)
    else:
        shutil.copyfile(store.folder / shard_name(1, 4), path)
    with pytest.raises(UserError, match=r"is damaged: shard-00002-of-00004\.arrow: "):
        TrajectoryStore.open(store.folder)
    assert [found.piece for found in verify_store(store.folder)] == [path.name]
    writer = make_writer(store.folder, records)
    if damage == "swap":  # a whole shard is never replaced unasked
        with pytest.raises(UserError, match="made with other settings"):
            writer.missing()
        path.unlink()
    assert writer.missing() == [2]
    fill(writer, records, [2])
    writer.finish()
    assert contents(store.folder) == before


def test_every_truncation_is_found_on_opening(
    store: TrajectoryStore, records: list[SampleRecord]
) -> None:
    path = store.folder / shard_name(1, 4)
    whole = path.read_bytes()
    writer = make_writer(store.folder, records)
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=f"{length} bytes instead of {len(whole)}"):
            TrajectoryStore.open(store.folder)
        assert writer.missing() == [1]


def test_every_flipped_byte_is_found_by_verify(store: TrajectoryStore) -> None:
    draw = random.Random(0)
    assert store.verify() == []
    before = contents(store.folder)
    places = [(name, at) for name, content in before.items() for at in range(len(content))]
    for name, at in draw.sample(places, 200):
        flipped = bytearray(before[name])
        flipped[at] ^= 1 << draw.randrange(8)
        (store.folder / name).write_bytes(flipped)
        assert [found.piece for found in store.verify()] == [name]
        (store.folder / name).write_bytes(before[name])
    assert store.verify() == []


def test_flips_never_crash_the_reader(store: TrajectoryStore) -> None:
    """Without checksums, a flip may pass unseen, but it is no crash and no wrong shape."""
    draw = random.Random(1)
    path = store.folder / shard_name(1, 4)
    whole = path.read_bytes()
    for _ in range(300):
        flipped = bytearray(whole)
        flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        try:
            opened = TrajectoryStore.open(store.folder)
        except UserError:
            continue
        for sample_id in opened.sample_ids[3:6]:
            record = opened[sample_id]
            assert record.trajectory.endpoint.shape == (len(record.anchors), 8)


def test_a_flip_from_before_the_end_is_found_after_it(
    tmp_path: Path, records: list[SampleRecord]
) -> None:
    """Checksums are of what was written, not of what the disk held when the run ended."""
    writer = make_writer(tmp_path, records)
    fill(writer, records, writer.missing())
    path = tmp_path / shard_name(1, 4)
    content = bytearray(path.read_bytes())
    at = content.index(int(records[5].trajectory.top_ids[0, 0, 0, 0]).to_bytes(4, "little"))
    content[at] ^= 1
    path.write_bytes(content)
    make_writer(tmp_path, records).finish()
    assert [found.piece for found in verify_store(tmp_path)] == [path.name]


# -- refusals ----------------------------------------------------------------------------------


def test_another_runs_store_is_refused(store: TrajectoryStore, records: list[SampleRecord]) -> None:
    before = contents(store.folder)
    other = replace(
        IDENTITY,
        steps=2,
        draft_config={"num_hidden_layers": 5, "dflash_config": {"target_layer_ids": [1, 2]}},
    )
    with pytest.raises(UserError) as caught:
        make_writer(store.folder, records, other)
    assert str(caught.value) == (
        f"trajectory store {store.folder} was made with draft_config.num_hidden_layers=2, steps=4, "
        "this run has draft_config.num_hidden_layers=5, steps=2; "
        "use another folder or the same settings"
    )
    with pytest.raises(UserError, match=r"samples=10, .*this run has samples=9, "):
        make_writer(store.folder, records[:9])
    with pytest.raises(UserError, match=r"shard_size=3, this run has shard_size=5"):
        make_writer(store.folder, records, shard_size=5)
    (store.folder / "identity.json").unlink()
    with pytest.raises(UserError, match=r"steps=4, this run has .*steps=2"):
        make_writer(store.folder, records, other)
    (store.folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"shard-00000-of-00004\.arrow was made with other"):
        make_writer(store.folder, records, other).missing()
    assert (
        before.items()
        >= {
            name: content for name, content in contents(store.folder).items() if "shard" in name
        }.items()
    )


def test_other_library_versions_continue_a_store_and_are_noted(
    tmp_path: Path, records: list[SampleRecord]
) -> None:
    writer = make_writer(tmp_path, records)
    fill(writer, records, [0, 1])
    later = make_writer(tmp_path, records, replace(IDENTITY, versions={"torch": "2.14.0"}))
    assert later.missing() == [2, 3]
    fill(later, records, [2, 3])
    later.finish()
    store = TrajectoryStore.open(tmp_path)
    assert store.manifest.versions == ({"torch": "2.13.0"}, {"torch": "2.14.0"})


@pytest.mark.parametrize(("before", "now"), [("", "cd" * 32), ("cd" * 32, "")])
def test_a_cache_that_one_side_does_not_know_is_no_reason_to_refuse(
    tmp_path: Path, records: list[SampleRecord], before: str, now: str
) -> None:
    """A store of before there was this setting is written as it was then, gone on with and read."""
    writer = make_writer(tmp_path, records, replace(IDENTITY, cache=before))
    fill(writer, records, [0, 1])
    written = json.loads((tmp_path / "identity.json").read_bytes())
    assert written["identity"].get("cache", "") == before
    assert ("cache" in written["identity"]) == bool(before)
    later = make_writer(tmp_path, records, replace(IDENTITY, cache=now))
    assert later.missing() == [2, 3]
    fill(later, records, [2, 3])
    later.finish()
    store = TrajectoryStore.open(tmp_path)
    store.check(cache=now)
    assert store.identity.cache == before
    assert not verify_store(tmp_path)


def test_a_store_of_another_cache_is_refused(tmp_path: Path, records: list[SampleRecord]) -> None:
    own, other = "ab" * 32, "cd" * 32
    store = make_store(tmp_path, records, replace(IDENTITY, cache=own))
    store.check(cache=own)
    with pytest.raises(UserError, match="was collected from another feature cache than this run's"):
        store.check(cache=other)
    with pytest.raises(UserError, match=f"made with cache={own}, this run has cache={other};"):
        make_writer(tmp_path, records, replace(IDENTITY, cache=other))


def test_check_names_what_differs(store: TrajectoryStore) -> None:
    store.check(block_size=8, vocab_size=64, teacher_hash="ab" * 32, logp_dtype="float16")
    store.check(anchors_per_sample=None, draft_config=IDENTITY.draft_config)
    with pytest.raises(UserError) as caught:
        store.check(block_size=16, vocab_size=64)
    assert str(caught.value) == (
        f"trajectory store {store.folder} has block_size=8, this run has block_size=16; use the "
        "store's settings, or run --mode dstill_collect with these into another folder"
    )
    with pytest.raises(UserError, match=r"was collected by another teacher: .*abab.*cdcd"):
        store.check(block_size=16, teacher_hash="cd" * 32)
    with pytest.raises(TypeError, match="no setting named blocksize"):
        store.check(blocksize=16)


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no trajectory store in .*none; run --mode"):
        TrajectoryStore.open(tmp_path / "none")
    with pytest.raises(UserError, match=r"is not a trajectory store: it has no identity\.json"):
        TrajectoryStore.open(tmp_path)
    (tmp_path / "identity.json").write_text('{"half": ')
    with pytest.raises(UserError, match=r"identity\.json is damaged"):
        TrajectoryStore.open(tmp_path)
    (tmp_path / "identity.json").write_text(json.dumps({"format": "something else"}))
    with pytest.raises(UserError, match=r"identity\.json is damaged \(it does not describe"):
        TrajectoryStore.open(tmp_path)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("steps", 128), ("steps", 0), ("vocab_size", 2**31), ("record", "all"), ("top_k", 65)],
)
def test_settings_that_the_files_cannot_hold(setting: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"{setting}={value!r}"):
        replace(IDENTITY, **{setting: value})


def test_records_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    record = make_record(3, blocks=2)
    writer = make_writer(tmp_path, [record])

    def refused(message: str, **changes: Any) -> None:
        trajectory = replace(record.trajectory, **changes)
        with pytest.raises((ValueError, UserError), match=message):
            writer.write_shard(0, [replace(record, trajectory=trajectory)])
        assert [path.name for path in tmp_path.iterdir()] == ["identity.json"]

    refused(r"endpoint of sample .* is \(1, 8\)", endpoint=record.trajectory.endpoint[:1])
    refused("endpoint of sample .* leaves", endpoint=record.trajectory.endpoint + 64)
    refused("commit_pass of sample .* leaves", commit_pass=record.trajectory.commit_pass + 4)
    refused("top_ids of sample .* leaves", top_ids=record.trajectory.top_ids - 64)
    refused("NaN log-probabilities for sample", top_logp=record.trajectory.top_logp * torch.nan)
    with pytest.raises(ValueError, match="not the samples of shard 0"):
        writer.write_shard(0, [replace(record, sample_id="another")])
    with pytest.raises(ValueError, match="a sample id appears twice"):
        make_writer(tmp_path, [record, record])


# -- the file system refuses -------------------------------------------------------------------


@pytest.fixture
def small_files() -> Iterator[int]:
    """A limit on the size of files, as a full disk would set it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = 10_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_grow(tmp_path: Path, small_files: int) -> None:
    record = make_record(1, blocks=500)
    writer = make_writer(tmp_path, [record])
    with pytest.raises(UserError, match=r"shard-00000-of-00001\.arrow: cannot be written: "):
        writer.write_shard(0, [record])
    assert [path.name for path in tmp_path.iterdir()] == ["identity.json"]


def test_a_full_disk(
    tmp_path: Path, records: list[SampleRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(tmp_path, records)
    fill(writer, records, [0])
    before = contents(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "whatever")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(UserError) as caught:
            fill(writer, records, [1])
    shard = tmp_path / shard_name(1, 4)
    assert str(caught.value) == (
        f"{shard}: cannot be written: No space left on device; what was finished is kept, make "
        "room or choose another folder and run the same command again"
    )
    assert contents(tmp_path) == before
    fill(writer, records, writer.missing())
    assert len(writer.finish().shards) == 4


def test_a_folder_that_cannot_be_made(tmp_path: Path, records: list[SampleRecord]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/store: cannot be written: Not a directory; "):
        make_writer(tmp_path / "file" / "store", records)


def test_a_read_only_folder(
    tmp_path: Path, records: list[SampleRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    really = Path.open

    def read_only(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if "r" not in mode:
            raise OSError(errno.EROFS, "whatever")
        return really(path, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", read_only)  # root may write anywhere else
    with pytest.raises(UserError, match=r"identity\.json: cannot be written: Read-only file sys"):
        make_writer(tmp_path, records)


def test_an_error_of_the_caller_stays_its_own(tmp_path: Path, records: list[SampleRecord]) -> None:
    def broken() -> Iterator[SampleRecord]:
        yield records[0]
        raise OSError(errno.EIO, "a feature file")

    writer = make_writer(tmp_path, records)
    with pytest.raises(OSError, match="a feature file"):
        writer.write_shard(0, broken())
    assert [path.name for path in tmp_path.iterdir()] == ["identity.json"]


def test_a_shard_that_vanishes_later(store: TrajectoryStore, records: list[SampleRecord]) -> None:
    (store.folder / shard_name(0, 4)).unlink()
    with pytest.raises(UserError, match=r"shard-00000-of-00004\.arrow has changed since"):
        store[records[0].sample_id]
