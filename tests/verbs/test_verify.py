"""verify and its --repair, on caches and stores: what it finds, says, moves and leaves."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from specforge_dstill.cli import main
from specforge_dstill.data.capture_core import Share
from specforge_dstill.data.manifest import CacheManifest
from specforge_dstill.data.markers import Marker, read_marker
from specforge_dstill.data.sealed import sealed_bytes
from specforge_dstill.trajectory_store import SampleRecord, TrajectoryStore, shard_name
from tests.data.caches import (
    Planted,
    capture_here,
    captured,
    files_of,
    made_up_states,
    make_manifest,
    make_samples,
    record,
    save,
)
from tests.test_trajectory_store import contents, fill, make_records, make_store, make_writer

NO_DAMAGE = ": feature cache, {} files read, no damage"
UNFINISHED = (
    ": the capture is not finished: {} of 3 shards entered; run the same capture command again for "
    "the rest"
)
NOT_ENTERED = ": {} files not entered yet are checked by their structure only"


class Verified:
    """One run of the verb: its status and its lines, without the folder's name."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path | str, *words: str) -> None:
        capsys.readouterr()
        self.status = main(["verify", str(folder), *words])
        said = capsys.readouterr()
        self.lines = [line.removeprefix(f"{folder}") for line in said.out.splitlines()]
        self.error = said.err

    @property
    def damaged(self) -> list[str]:
        """The pieces that lines name."""
        return [line[1:].partition(": ")[0] for line in self.lines if line.startswith("/")]


def flip_everywhere(
    capsys: pytest.CaptureFixture[str], folder: Path, *, places: int, seed: int
) -> set[str]:
    """Flip a bit at random places of any file: each must be named. The files that were hit."""
    draw = random.Random(seed)
    before = files_of(folder)
    spots = [(name, at) for name, content in before.items() for at in range(len(content))]
    chosen = draw.sample(spots, places - len(before))
    # Of a few long files and many short ones, none may be missed by chance.
    chosen += [(name, draw.randrange(len(content))) for name, content in before.items()]
    for name, at in chosen:
        flipped = bytearray(before[name])
        flipped[at] ^= 1 << draw.randrange(8)
        (folder / name).write_bytes(flipped)
        found = Verified(capsys, folder)
        assert (found.status, found.damaged) == (1, [name]), (name, at)
        (folder / name).write_bytes(before[name])
    assert Verified(capsys, folder).status == 0
    return {name for name, _ in chosen}


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn"])
def test_every_flipped_byte_of_a_cache_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    folder = captured(tmp_path / "cache", dtype=dtype)
    hit = flip_everywhere(capsys, folder, places=200, seed=1)
    small = {"capture.json", "manifest.json", "samples.jsonl"}
    assert small | {f"shards/{shard:05d}.jsonl" for shard in range(3)} <= hit
    assert sum(name.startswith("data/") for name in hit) == 6


def test_every_flipped_byte_of_a_store_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path / "store", make_records(10))
    hit = flip_everywhere(capsys, tmp_path / "store", places=200, seed=2)
    assert {"identity.json", "manifest.json", "samples.txt", shard_name(3, 4)} <= hit


def test_what_it_says_when_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Verified(capsys, captured(tmp_path / "cache"))
    assert (found.status, found.lines) == (0, [NO_DAMAGE.format(6)])
    assert "verify: 6/6 files" in found.error
    make_store(tmp_path / "store", make_records(10))
    found = Verified(capsys, tmp_path / "store", "--repair")
    assert (found.status, found.lines) == (0, [": trajectory store, 4 files read, no damage"])


# -- repair ------------------------------------------------------------------------------------


def capture_again(folder: Path, samples: int = 7, **options: Any) -> CacheManifest | None:
    """The command that made :func:`captured`."""
    seen: list[str] = []

    def extract(wanted: Any) -> Any:
        seen.extend(sample.id for sample in wanted)
        return made_up_states(wanted)

    made = make_samples([5 + index for index in range(samples)])
    made[1] = type(made[1])("s1", made[1].input_ids, torch.tensor([0, 1, 0, 1, 0, 1]))
    manifest = make_manifest(conversation_count=samples)
    done: CacheManifest | None = capture_here(folder, made, extract, manifest=manifest, **options)
    return done


def damage(folder: Path, name: str, how: str) -> bytes:
    path = folder / name
    content = path.read_bytes()
    if how == "flip":
        path.write_bytes(content[:99] + bytes([content[99] ^ 4]) + content[100:])
    elif how == "cut":
        path.write_bytes(content[:-7])
    else:
        path.unlink()
    return content


@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
@pytest.mark.parametrize(
    "name",
    [
        *("data/00000/00000002.ckpt", "data/00002/00000006.ckpt", "shards/00001.jsonl"),
        *("capture.json", "manifest.json", "samples.jsonl"),
    ],
)
def test_a_repaired_cache_is_made_whole_by_the_same_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, how: str
) -> None:
    folder = captured(tmp_path / "cache")
    whole = files_of(folder)
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.ckpt")}
    damage(folder, name, how)
    broken = files_of(folder)
    found = Verified(capsys, folder, "--repair")
    # Without its manifest a capture is not finished, rather than damaged.
    assert found.status == (0 if (name, how) == ("manifest.json", "gone") else 1)
    if how != "gone":
        aside = folder / "damaged" / f"{name}.1"
        assert f"; moved to {aside}" in found.lines[0]
        assert aside.read_bytes() == broken[name]
    again = Verified(capsys, folder)
    assert [line for line in again.lines if "/damaged/" in line] == []
    assert capture_again(folder) is not None
    assert {k: v for k, v in files_of(folder).items() if not k.startswith("damaged/")} == whole
    for path, time in times.items():
        assert (path.stat().st_mtime_ns == time) == (path != folder / name)
    assert Verified(capsys, folder).lines == [NO_DAMAGE.format(6)]


def test_repair_takes_back_what_it_moves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = captured(tmp_path / "cache")
    for number in (1, 2):
        damage(folder, "data/00000/00000002.ckpt", "flip")
        found = Verified(capsys, folder, "--repair")
        assert found.lines == [
            (
                "/data/00000/00000002.ckpt: does not match its checksum; moved to "
                f"{folder}/damaged/data/00000/00000002.ckpt.{number}"
            ),
            (
                ": feature cache, 6 files read, 1 piece damaged or missing; "
                "now run the same capture command"
            ),
        ]
        marker = read_marker(folder, 0)
        assert marker is not None
        assert marker.rows[2] == {"id": "s2", "damaged": "does not match its checksum"}
        then = Verified(capsys, folder)
        assert (then.status, then.lines) == (
            0,
            [
                UNFINISHED.format(2),
                NO_DAMAGE.format(5),
            ],
        )
        capture_again(folder)


def test_a_cache_that_lost_its_identity_before_a_shard_was_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing tells whose its files are: all of them are set aside."""
    folder = captured(tmp_path / "cache")
    whole = files_of(folder)
    for name in ("manifest.json", "samples.jsonl", *(f"shards/{i:05d}.jsonl" for i in range(3))):
        (folder / name).unlink()
    assert Verified(capsys, folder).lines == [
        UNFINISHED.format(0),
        NOT_ENTERED.format(6),
        NO_DAMAGE.format(6),
    ]
    damage(folder, "capture.json", "flip")
    assert len(Verified(capsys, folder, "--repair").damaged) == 7
    capture_again(folder)
    found = files_of(folder)
    assert whole.items() <= found.items()
    assert sum(name.startswith("damaged/") for name in found) == 7


def test_an_unfinished_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = captured(tmp_path / "whole")
    parts = tmp_path / "parts"
    assert capture_again(parts, share=Share(0, 2)) is None
    shutil.copytree(folder / "data/00001", parts / "data/00001")  # written, not entered
    found = Verified(capsys, parts)
    assert (found.status, found.lines[:2]) == (
        0,
        [
            UNFINISHED.format(2),
            NOT_ENTERED.format(3),
        ],
    )
    damage(parts, "data/00001/00000004.ckpt", "cut")
    damage(parts, "data/00002/00000006.ckpt", "flip")
    assert sorted(Verified(capsys, parts, "--repair").damaged) == [
        "data/00001/00000004.ckpt",
        "data/00002/00000006.ckpt",
    ]
    assert capture_again(parts) is not None
    assert files_of(folder).items() <= files_of(parts).items()


def test_files_that_were_not_captured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = captured(tmp_path / "cache")
    for name in ("data/00000/00000001.ckpt", "more/a.ckpt"):
        save(folder, name, record())
    found = Verified(capsys, folder, "--repair")
    assert found.damaged == ["data/00000/00000001.ckpt", "more/a.ckpt"]
    assert all("is entered by no marker; moved to" in line for line in found.lines[:2])
    assert Verified(capsys, folder).status == 0


def test_a_list_that_is_not_the_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is whole alone: a capture that did a shard again and was killed before the end."""
    folder = captured(tmp_path / "cache")
    marker = read_marker(folder, 2)
    assert marker is not None
    (row,) = marker.rows
    changed = Marker(marker.capture, ({**row, "length": 12},))
    (folder / "shards/00002.jsonl").write_bytes(changed.to_bytes())
    found = Verified(capsys, folder)
    assert found.lines[0] == "/samples.jsonl: is not what the markers enter"


# -- caches of other makers --------------------------------------------------------------------


def test_a_cache_without_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cache"
    good = save(folder, "rows_0-5000/data_0.ckpt", record())
    note = ": it has no manifest: structure, CRCs and finite states are checked"
    assert Verified(capsys, folder).lines == [note, NO_DAMAGE.format(1)]
    states = torch.zeros(6, 8)
    states[2, 3] = float("nan")
    save(folder, "b.ckpt", record(hidden_states=states))
    save(folder, "c.ckpt", record(hidden_states=torch.zeros(5, 8)))
    save(folder, "d.ckpt", record(extra=Planted(tmp_path / "ran")))
    save(folder, "e.ckpt", [torch.zeros(2)])
    content = good.read_bytes()
    at = content.index((3).to_bytes(8, "little"))  # among the token ids
    (folder / "f.ckpt").write_bytes(content[:at] + b"\x09" + content[at + 1 :])
    (folder / "g.ckpt.gz").write_bytes(gzip.compress(content)[:-3])
    (folder / "rows_0-5000/data_1.ckpt.gz").write_bytes(gzip.compress(content)[:-3])
    (folder / "h.ckpt.gz").write_bytes(gzip.compress(content))
    before = files_of(folder)
    found = Verified(capsys, folder, "--repair")
    assert found.status == 1
    assert found.damaged == [
        *("b.ckpt", "c.ckpt", "d.ckpt", "e.ckpt", "f.ckpt", "g.ckpt.gz"),
        "rows_0-5000/data_1.ckpt.gz",
    ]
    left = ["left there" in line for line in found.lines[:7]]
    assert left == [False, False, True, True, False, True, False]
    problems = [line.partition(": ")[2].partition(";")[0] for line in found.lines[:7]]
    assert problems[0] == "its hidden_states hold NaN or infinite values"
    assert problems[1] == (
        "its tensors differ in length (input_ids 6, loss_mask 6, hidden_states 5)"
    )
    assert problems[2].startswith("holds more than tensors")
    assert problems[3] == "is not a feature file (a dictionary of tensors)"
    assert problems[4].endswith("does not match its CRC")
    assert problems[5].startswith("cannot be read (")
    assert not (tmp_path / "ran").exists()
    after = files_of(folder)
    assert {name.removeprefix("damaged/").removesuffix(".1"): c for name, c in after.items()} == (
        before
    )
    assert Verified(capsys, folder).damaged == ["d.ckpt", "e.ckpt", "g.ckpt.gz"]


def test_a_folder_with_caches_in_it_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    captured(work / "caches/one")
    make_store(work / "store", make_records(3))
    save(work, "logs/version_0/checkpoints/a.ckpt", {"state_dict": {}, "epoch": 3})
    damage(work, "caches/one/data/00000/00000002.ckpt", "flip")
    before = files_of(work)
    for _ in range(2):
        found = Verified(capsys, work, "--repair")
        assert (found.status, found.lines) == (2, [])
        assert f"name one of: {work}/caches/one, {work}/store" in found.error
        assert files_of(work) == before
    shutil.rmtree(work / "caches")
    shutil.rmtree(work / "store")
    found = Verified(capsys, work, "--repair")
    assert found.status == 2
    assert "though logs/version_0/checkpoints/a.ckpt lies in it" in found.error


def test_someone_elses_manifest_makes_no_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "app"}')
    save(tmp_path, "best.ckpt", {"state_dict": {}, "epoch": 3})
    before = files_of(tmp_path)
    found = Verified(capsys, tmp_path, "--repair")
    assert found.status == 1
    assert found.damaged == ["best.ckpt"]
    assert "; left there: it is not recognisably a feature file" in found.lines[0]
    assert files_of(tmp_path) == before


def test_float8_states_that_decode_to_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = torch.ones(6, 8).to(torch.float8_e4m3fn)
    scales = torch.ones(6, 2)
    scales[3, 1] = float("inf")
    save(tmp_path, "a.ckpt", record(hidden_states=values, hidden_states_scale=scales))
    found = Verified(capsys, tmp_path)
    assert "/a.ckpt: its hidden_states hold NaN or infinite values" in found.lines


@pytest.mark.parametrize("name", ["manifest.json", "capture.json"])
def test_a_cache_of_another_format_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = captured(tmp_path / "cache")
    content = json.loads((folder / name).read_text())
    del content["checksum"]
    (folder / name).write_bytes(sealed_bytes({**content, "format": 3}))
    before = files_of(folder)
    found = Verified(capsys, folder, "--repair")
    assert (found.status, found.lines) == (2, [])
    assert f"{folder / name}: its format is 3, and this version reads 2; use the" in found.error
    assert files_of(folder) == before


# -- stores ------------------------------------------------------------------------------------


def collect_again(folder: Path, records: list[SampleRecord]) -> list[int]:
    """What a second collection does, and which shards it makes."""
    writer = make_writer(folder, records)
    missing = writer.missing()
    fill(writer, records, missing)
    writer.finish()
    return missing


@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
@pytest.mark.parametrize(
    "name", [shard_name(2, 4), "identity.json", "samples.txt", "manifest.json"]
)
def test_a_repaired_store_is_made_whole_by_collecting_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, how: str
) -> None:
    records, folder = make_records(10), tmp_path / "store"
    make_store(folder, records)
    whole = contents(folder)
    damage(folder, name, how)
    found = Verified(capsys, folder, "--repair")
    assert found.status == (0 if (name, how) == ("manifest.json", "gone") else 1)
    if found.status:
        assert found.damaged == [name]
        assert found.lines[-1].endswith("1 piece damaged or missing; now run --mode dstill_collect")
    assert collect_again(folder, records) == ([2] if name.startswith("shard") else [])
    if how != "gone":
        (aside,) = (folder / "damaged").iterdir()
        assert aside.name == f"{name}.1"
        shutil.rmtree(folder / "damaged")
    assert contents(folder) == whole
    assert len(TrajectoryStore.open(folder)) == 10


def test_an_unfinished_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, folder = make_records(10), tmp_path / "store"
    fill(make_writer(folder, records), records, [0, 1, 3])
    found = Verified(capsys, folder)
    assert (found.status, found.lines) == (
        0,
        [
            (
                ": the collection is not finished: 1 of 4 shards missing; "
                "run --mode dstill_collect again"
            ),
            ": trajectory store, 3 files read, no damage",
        ],
    )
    name = shard_name(1, 4)
    before = flip_all_of(capsys, folder, name)
    damage(folder, name, "flip")
    assert Verified(capsys, folder, "--repair").damaged == [name]
    assert not (folder / f"{name}.sha256").exists()
    assert collect_again(folder, records) == [1, 2]
    assert (folder / name).read_bytes() == before


def flip_all_of(capsys: pytest.CaptureFixture[str], folder: Path, name: str) -> bytes:
    """Flips of one file at random places are found; its content."""
    draw = random.Random(0)
    whole = (folder / name).read_bytes()
    for _ in range(20):
        flipped = bytearray(whole)
        flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        (folder / name).write_bytes(flipped)
        assert Verified(capsys, folder).damaged == [name]
    (folder / name).write_bytes(whole)
    return whole


def test_an_unfinished_store_whose_identity_was_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A readable file that its shards were not made by: it is the one that is damaged."""
    records, folder = make_records(10), tmp_path / "store"
    fill(make_writer(folder, records), records, [0, 1])
    path = folder / "identity.json"
    path.write_bytes(path.read_bytes().replace(b'"seed": 7', b'"seed": 6'))
    found = Verified(capsys, folder, "--repair")
    assert found.damaged == ["identity.json"]
    assert "is not the one that the shards were made by" in found.lines[0]
    assert collect_again(folder, records) == [2, 3]


# -- refusals ----------------------------------------------------------------------------------


def test_what_is_neither(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shards").mkdir()
    answers = tmp_path / "answers.jsonl"
    answers.write_text("{}")
    for path, said in (
        (tmp_path / "none", "no such file or folder; name a cache or a trajectory store"),
        (tmp_path, "neither a feature cache nor a trajectory store; name the folder that capture"),
        ("s3://bucket/store", "verify reads folders"),
        (answers, "is a file, not a cache or a store"),
    ):
        found = Verified(capsys, path)
        assert (found.status, found.lines) == (2, [])
        assert said in found.error
        assert found.error.count("\n") == 1


def test_help_names_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify", "--help"])
    said = capsys.readouterr().out
    assert "Exit status: 0 when all is" in said
    assert "--repair" in said
