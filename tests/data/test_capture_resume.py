"""Captures that are interrupted, shared by ranks, damaged and gone on with."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from specforge_dstill import files as files_module
from specforge_dstill.data import capture_shard
from specforge_dstill.data.capture_core import Share, capture_samples
from specforge_dstill.data.capture_transformers import Features, TransformersExtractor
from specforge_dstill.data.chat import TokenSample
from specforge_dstill.data.feature_files import all_finite, load_features
from specforge_dstill.data.manifest import CacheManifest, read_samples
from specforge_dstill.data.markers import read_marker
from specforge_dstill.errors import UserError
from tests.test_trajectory_store import make_records, make_store

from .caches import KEYS, LAYERS, capture_here, files_of, layout, make_manifest, make_samples


class Counting:
    """An extractor that counts its samples, and can stop as a killed run would."""

    def __init__(self, extract: Callable[..., list[Features]], stop_after: int = 10**9) -> None:
        self.extract, self.stop_after, self.seen = extract, stop_after, 0

    def __call__(self, samples: Sequence[TokenSample]) -> list[Features]:
        if self.seen + len(samples) > self.stop_after:
            raise KeyboardInterrupt
        self.seen += len(samples)
        return self.extract(samples)


def test_a_second_run_does_what_is_missing(model: Any, tmp_path: Path) -> None:
    samples = make_samples([9, 5, 17, 6, 7, 8, 9])
    extract = TransformersExtractor(model, LAYERS)
    capture_here(tmp_path / "whole", samples, extract)
    folder = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        capture_here(folder, samples, Counting(extract, stop_after=4))
    assert not (folder / "manifest.json").exists()
    (folder / "data/00001").mkdir(exist_ok=True)
    for name in ("data/00001/.00000003.ckpt", "shards/.00001.jsonl", ".capture.json"):
        path = folder / f"{name}.0123456789abcdef.tmp"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    written = len(list(folder.rglob("*.ckpt")))
    assert 0 < written < 7
    rest = Counting(extract)
    capture_here(folder, samples, rest)
    assert rest.seen == 7 - written
    assert files_of(folder) == files_of(tmp_path / "whole")
    again = Counting(extract)
    capture_here(folder, samples, again)
    assert again.seen == 0
    (folder / "data/00001/00000004.ckpt").unlink()
    assert capture_here(folder, samples, again) is not None
    assert again.seen == 3  # its batch, so that the file comes out the same
    assert files_of(folder) == files_of(tmp_path / "whole")


def test_two_ranks_write_what_one_does(model: Any, tmp_path: Path) -> None:
    samples = make_samples([9, 5, 17, 6, 7, 8, 9])
    extract = TransformersExtractor(model, LAYERS)
    capture_here(tmp_path / "one", samples, extract)
    folder = tmp_path / "two"
    assert capture_here(folder, samples, extract, share=Share(1, 2)) is None
    quiet = capture_here(folder, samples, extract, share=Share(0, 2, writes=False))
    assert quiet is None
    assert capture_here(folder, samples, extract, share=Share(0, 2)) is not None
    assert files_of(folder) == files_of(tmp_path / "one")


def test_other_features_in_the_folder_are_refused(model: Any, tmp_path: Path) -> None:
    samples = make_samples([9])
    extract = TransformersExtractor(model, LAYERS)
    capture_here(tmp_path, samples, extract)
    before = files_of(tmp_path)
    with pytest.raises(UserError) as caught:
        capture_here(tmp_path, samples, extract, manifest=make_manifest(target_layer_ids=(1,)))
    assert str(caught.value) == (
        f"{tmp_path}: holds features made with other settings "
        "(target_layer_ids was [0, 2, 3] and is now [1]); choose another --output"
    )
    assert files_of(tmp_path) == before
    (tmp_path / "capture.json").unlink()
    capture_here(tmp_path, samples, extract)  # a shard's marker tells whose they are
    assert files_of(tmp_path) == before
    (tmp_path / "capture.json").unlink()
    (tmp_path / "shards/00000.jsonl").unlink()
    with pytest.raises(UserError, match="holds features that this command did not make"):
        capture_here(tmp_path, samples, extract)


def test_a_folder_of_something_else_is_left_as_it_is(model: Any, tmp_path: Path) -> None:
    extract = TransformersExtractor(model, LAYERS)
    make_store(tmp_path / "store", make_records(3))
    unnamed = shutil.copytree(tmp_path / "store", tmp_path / "unnamed")
    (unnamed / "identity.json").unlink()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "texts/data").mkdir(parents=True)
    (tmp_path / "texts/data/train.jsonl").write_text("{}")
    before = files_of(tmp_path)
    for name, said in (
        ("store", "is a trajectory store; choose another --output for features"),
        ("unnamed", "is a trajectory store; choose another --output for features"),
        ("model", "is not empty and holds no capture; choose another --output"),
        ("texts", "is not empty and holds no capture; choose another --output"),
    ):
        with pytest.raises(UserError) as caught:
            capture_here(tmp_path / name, make_samples([9]), extract)
        assert str(caught.value) == f"{tmp_path / name}: {said}"
    assert files_of(tmp_path) == before


def test_what_a_killed_first_run_leaves_is_no_obstacle(model: Any, tmp_path: Path) -> None:
    for name in ("data/00000", "shards"):
        (tmp_path / name).mkdir(parents=True)
    for name in (".capture.json", "data/00000/.00000000.ckpt"):
        (tmp_path / f"{name}.0123456789abcdef.tmp").write_bytes(b"half")
    assert capture_here(tmp_path, make_samples([9]), TransformersExtractor(model, LAYERS))
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_cache_is_not_extended(model: Any, tmp_path: Path) -> None:
    extract = TransformersExtractor(model, LAYERS)
    capture_here(tmp_path, make_samples([9]), extract, manifest=make_manifest())
    grown = make_manifest(conversation_count=9, conversations_hash="1")
    before = files_of(tmp_path)
    with pytest.raises(UserError) as caught:
        capture_here(tmp_path, make_samples([9, 5]), extract, manifest=grown)
    assert str(caught.value) == (
        f"{tmp_path}: holds the features of other conversations (7 then, 9 now); a cache cannot be "
        "extended or changed: choose another --output"
    )
    assert files_of(tmp_path) == before


def test_a_finished_cache_that_cannot_be_written(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, extract = make_samples([9, 5, 17, 6]), TransformersExtractor(model, LAYERS)
    done = capture_here(tmp_path, samples, extract)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*")}

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files_module, "_written_beside", refuse)
    noted = make_manifest(options={"batch_tokens": 1}, versions={"torch": "3"})
    assert capture_here(tmp_path, samples, extract, manifest=noted) == done
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*")} == before


OVERFLOW = {
    "float32": float("inf"),
    "bfloat16": 3.4e38,  # finite in float32, rounds to infinity
    "float16": 7e4,
    "float8_e4m3fn": float("inf"),
}


@pytest.mark.parametrize("dtype", OVERFLOW)
@pytest.mark.parametrize("nan", [True, False])
def test_features_that_are_not_finite_are_left_out(
    model: Any, tmp_path: Path, dtype: str, nan: bool
) -> None:
    real = TransformersExtractor(model, LAYERS)

    def extract(samples: Sequence[TokenSample]) -> list[Features]:
        made = [Features(found.hidden_states.clone()) for found in real(samples)]
        for sample, found in zip(samples, made, strict=True):
            if sample.id == "s1":
                found.hidden_states[2, 5] = float("nan") if nan else OVERFLOW[dtype]
        return made

    samples = make_samples([9, 5])
    manifest = manifest_of(dtype)
    done = capture_here(tmp_path, samples, extract, manifest=manifest)
    assert (done.samples, done.dropped) == (1, {"features that are not finite": 1})
    assert done.dropped_ids["features that are not finite"] == ["s1"]
    assert not (tmp_path / "data/00000/00000001.ckpt").exists()
    assert all_finite(load_features(tmp_path / "data/00000/00000000.ckpt")["hidden_states"])
    counting = Counting(extract)
    capture_here(tmp_path, samples, counting, manifest=manifest)
    assert counting.seen == 0


def manifest_of(dtype: str) -> CacheManifest:
    scale = ["hidden_states_scale"] if dtype == "float8_e4m3fn" else []
    return make_manifest(dtype=dtype, keys=(*KEYS, *scale))


@pytest.mark.parametrize("size", [1e30, 1e38])
def test_float8_holds_what_other_halves_overflow_on(
    model: Any, tmp_path: Path, size: float
) -> None:
    """A scale fits any finite state."""
    real = TransformersExtractor(model, LAYERS)

    def extract(samples: Sequence[TokenSample]) -> list[Features]:
        return [Features(found.hidden_states.tanh() * size) for found in real(samples)]

    done = capture_here(tmp_path, make_samples([9]), extract, manifest=manifest_of("float8_e4m3fn"))
    assert done.dropped == {}
    stored = load_features(tmp_path / "data/00000/00000000.ckpt")["hidden_states"]
    (wanted,) = extract(make_samples([9]))
    assert bool(((stored - wanted.hidden_states).abs() <= 2.0**-4 * size).all())


def test_nothing_usable(model: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        capture_here(tmp_path, make_samples([9, 5], scored=1), TransformersExtractor(model, LAYERS))
    assert str(caught.value) == (
        f"{tmp_path}: no conversation gave a usable sample: "
        "no two neighbouring scored tokens (2); samples are cut at data.max_length, 64 tokens"
    )


def test_a_full_disk(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    extract = TransformersExtractor(model, LAYERS)
    capture_samples(
        make_samples([9]), extract, layout=layout(), folder=tmp_path, manifest=make_manifest()
    )
    (tmp_path / "data/00000/00000000.ckpt").unlink()
    (tmp_path / "shards/00000.jsonl").unlink()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError) as caught:
        capture_here(tmp_path, make_samples([9]), extract)
    assert str(caught.value) == (
        f"{tmp_path}/data/00000/00000000.ckpt: cannot be written: No space left on device; what "
        "was finished is kept, make room or choose another folder and run the same command again"
    )
    assert list(tmp_path.rglob("*.tmp")) == []


def test_every_file_is_entered_with_its_checksum(model: Any, tmp_path: Path) -> None:
    done = capture_here(tmp_path, make_samples([9, 5, 17, 6]), TransformersExtractor(model, LAYERS))
    rows = read_samples(tmp_path, done)
    assert [row["id"] for row in rows] == ["s0", "s1", "s2", "s3"]
    for row in rows:
        content = (tmp_path / row["sample_id"]).read_bytes()
        assert row["bytes"] == len(content)
        assert row["sha256"] == hashlib.sha256(content).hexdigest()
    markers = [read_marker(tmp_path, shard) for shard in (0, 1)]
    assert [marker.samples for marker in markers if marker] == [rows[:3], rows[3:]]
    assert (done.tokens, done.feature_bytes) == (37, sum(row["bytes"] for row in rows))


def kill_after(folder: Path, samples: list[TokenSample], extract: Any, files: int) -> None:
    """A capture that is killed before it writes its ``files + 1``-th feature file."""
    written = 0

    def write(path: Path, content: Any) -> None:
        nonlocal written
        if path.suffix == ".ckpt":
            if written == files:
                raise KeyboardInterrupt
            written += 1
        files_module.write_atomically(path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_shard, "write_atomically", write)
        with pytest.raises(KeyboardInterrupt):
            capture_here(folder, samples, extract)


@pytest.mark.parametrize("files", [0, 1, 3, 4, 6])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_number_of_ranks_goes_on(model: Any, tmp_path: Path, files: int, ranks: int) -> None:
    samples = make_samples([9, 5, 17, 6, 7, 8, 9])
    extract = TransformersExtractor(model, LAYERS)
    capture_here(tmp_path / "whole", samples, extract)
    folder = tmp_path / "killed"
    kill_after(folder, samples, extract, files)
    assert len(list(folder.rglob("*.ckpt"))) == files
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.ckpt")}
    done = [
        capture_here(folder, samples, extract, share=Share(rank, ranks))
        for rank in reversed(range(ranks))
    ]
    assert done[-1] is not None
    assert files_of(folder) == files_of(tmp_path / "whole")
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing twice


def test_a_file_left_by_a_killed_run_is_kept_only_if_every_byte_is_as_written(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = make_samples([9, 5, 6])
    extract = TransformersExtractor(model, LAYERS)
    capture_here(tmp_path / "whole", samples, extract)
    rng = random.Random(0)
    for trial in range(40):
        folder = tmp_path / str(trial)
        kill_after(folder, samples, extract, 2)
        (left, right) = sorted(folder.rglob("*.ckpt"))
        content = bytearray(left.read_bytes())
        place = rng.randrange(len(content))
        content[place] ^= 1 << rng.randrange(8)
        left.write_bytes(content)
        time = right.stat().st_mtime_ns
        capture_here(folder, samples, extract)
        name = left.relative_to(folder).as_posix()
        found = files_of(folder)
        assert found.pop(f"damaged/{name}.1") == bytes(content), place
        assert found == files_of(tmp_path / "whole")
        assert right.stat().st_mtime_ns == time
        said = capsys.readouterr().err
        assert f"{left} is damaged: moved to {folder}/damaged/{name}.1, and made again" in said


def test_a_file_left_by_another_text_is_not_kept(model: Any, tmp_path: Path) -> None:
    """Whole, but not of this sample."""
    samples = make_samples([9, 9, 9])
    extract = TransformersExtractor(model, LAYERS)
    capture_here(tmp_path / "whole", samples, extract)
    kill_after(tmp_path / "parts", samples, extract, 2)
    one, other = sorted((tmp_path / "parts").rglob("*.ckpt"))
    shutil.copy(one, other)
    capture_here(tmp_path / "parts", samples, extract)
    found = files_of(tmp_path / "parts")
    assert [name for name in found if name.startswith("damaged/")] == [
        f"damaged/{other.relative_to(tmp_path / 'parts').as_posix()}.1"
    ]
    assert files_of(tmp_path / "whole").items() <= found.items()


def test_a_file_of_another_size_is_made_again(model: Any, tmp_path: Path) -> None:
    samples = make_samples([9, 5, 17, 6])
    extract = TransformersExtractor(model, LAYERS)
    capture_here(tmp_path, samples, extract)
    whole = files_of(tmp_path)
    cut = tmp_path / "data/00000/00000001.ckpt"
    for number in (1, 2):
        cut.write_bytes(cut.read_bytes()[: -100 * number])
        counting = Counting(extract)
        capture_here(tmp_path, samples, counting)
        assert 0 < counting.seen <= 3
        found = files_of(tmp_path)
        aside = found[f"damaged/data/00000/00000001.ckpt.{number}"]  # none overwritten
        assert aside == whole["data/00000/00000001.ckpt"][: -100 * number]
        assert whole.items() <= found.items()


def test_what_is_taken_back_is_taken_back_before_it_is_done_again(
    model: Any, tmp_path: Path
) -> None:
    """Killed in between, no other rank may finish the cache without it."""
    samples = make_samples([9, 5, 17, 6])
    extract = TransformersExtractor(model, LAYERS)
    capture_here(tmp_path, samples, extract)
    whole = files_of(tmp_path)
    (tmp_path / "data/00000/00000001.ckpt").unlink()
    with pytest.raises(KeyboardInterrupt):
        capture_here(tmp_path, samples, Counting(extract, stop_after=0), share=Share(0, 2))
    marker = read_marker(tmp_path, 0)
    assert marker is not None
    assert marker.rows[1] == {"id": "s1", "damaged": "missing"}
    assert not marker.complete
    assert capture_here(tmp_path, samples, extract, share=Share(1, 2)) is None
    assert capture_here(tmp_path, samples, extract, share=Share(0, 2)) is not None
    assert files_of(tmp_path) == whole


def test_a_damaged_marker_is_made_again_from_whole_files(model: Any, tmp_path: Path) -> None:
    samples = make_samples([9, 5, 17, 6])
    extract = TransformersExtractor(model, LAYERS)
    capture_here(tmp_path, samples, extract)
    whole = files_of(tmp_path)
    path = tmp_path / "shards/00000.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"length": 9', b'"length": 8'))
    counting = Counting(extract)
    capture_here(tmp_path, samples, counting)
    assert counting.seen == 0
    found = files_of(tmp_path)
    assert found.pop("damaged/shards/00000.jsonl.1") != whole["shards/00000.jsonl"]
    assert found == whole


def test_a_damaged_identity_is_named(model: Any, tmp_path: Path) -> None:
    samples = make_samples([9])
    extract = TransformersExtractor(model, LAYERS)
    capture_here(tmp_path, samples, extract)
    path = tmp_path / "capture.json"
    path.write_bytes(path.read_bytes().replace(b'"width": 96', b'"width": 97'))
    with pytest.raises(UserError) as caught:
        capture_here(tmp_path, samples, extract)
    assert str(caught.value) == (
        f"{path} is damaged (it does not match its own checksum); set it aside with: "
        f"specforge-dstill verify {tmp_path} --repair, and run the same command again"
    )


def test_a_capture_of_another_format_is_left_alone(model: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.ckpt").write_bytes(b"")
    (tmp_path / "capture.json").write_text('{"format": 1}')
    before = files_of(tmp_path)
    with pytest.raises(UserError, match="its format is 1, and this version reads 2; use the"):
        capture_here(tmp_path, make_samples([9]), TransformersExtractor(model, LAYERS))
    assert files_of(tmp_path) == before
