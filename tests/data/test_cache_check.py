from __future__ import annotations

import gzip
import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from specforge_dstill.data import jsonl
from specforge_dstill.data.cache_check import check_cache
from specforge_dstill.data.feature_files import FeatureInfo, load_features
from specforge_dstill.data.float8 import encode_float8
from specforge_dstill.data.manifest import CacheManifest
from specforge_dstill.data.sealed import sealed_bytes
from specforge_dstill.errors import UserError
from specforge_dstill.token_hash import token_hash

from .caches import KEYS, Planted, record, save


def check(folder: Path, **options: Any) -> list[FeatureInfo]:
    return check_cache(folder, **{"required_keys": KEYS, "width": 8, "layers": [1, 3], **options})


def fault(folder: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        check(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_manifest(folder: Path, *, samples: int | None = None, **changes: Any) -> None:
    """Enter the files of ``folder`` as a finished capture of layers 1 and 3."""
    made: dict[str, Any] = {
        "target": "t",
        "target_hash": "",
        "target_layer_ids": (1, 3),
        "strategy": "dflash",
        "keys": KEYS,
        "width": 8,
        "dtype": "float32",
        "max_length": 64,
        "shard_size": 1,
        "chat_template": "tokenizer",
        "chat_template_hash": "",
        "conversations": "c",
        "conversations_hash": "",
        "conversation_count": 1,
    }
    rows = [
        {
            "sample_id": path.relative_to(folder).as_posix(),
            "bytes": path.stat().st_size,
            "token_hash": token_hash(load_features(path)["input_ids"]),
        }
        for path in sorted(folder.rglob("*.ckpt"))
    ]
    checksum = jsonl.write_objects(folder / "samples.jsonl", rows)
    count = {"samples": len(rows), "samples_sha256": checksum}
    CacheManifest(**{**made, **count, **changes}).write(folder)


def test_a_good_cache_shared_by_ranks(tmp_path: Path) -> None:
    for i in range(5):
        save(tmp_path, f"data/00000/0000000{i}.ckpt", record(6 + i))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        everything = check(tmp_path, dtype=torch.float32)
        parts = [check(tmp_path, rank=rank, world_size=2) for rank in (0, 1)]
    assert [info.lengths["input_ids"] for info in everything] == [6, 7, 8, 9, 10]
    assert parts == [everything[0::2], everything[1::2]]


def test_gzip_and_a_leading_batch_axis(tmp_path: Path) -> None:
    """Files of SpecForge's own script are read, too."""
    buffer = io.BytesIO()
    torch.save(record(hidden_states=torch.zeros(1, 6, 8)), buffer)
    (tmp_path / "a.ckpt.gz").write_bytes(gzip.compress(buffer.getvalue()))
    (info,) = check(tmp_path)
    assert (info.width, info.lengths["hidden_states"]) == (8, 6)


def test_of_gzipped_files_the_first_alone_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look into one is to decompress it; plain files among them are opened as ever."""
    buffer = io.BytesIO()
    torch.save(record(), buffer)
    for name in "abc":
        (tmp_path / f"{name}.ckpt.gz").write_bytes(gzip.compress(buffer.getvalue()))
    save(tmp_path, "d.ckpt", record(9))
    read: list[str] = []
    real = gzip.open
    monkeypatch.setattr(gzip, "open", lambda path, *rest: (read.append(path.name), real(path))[1])
    assert [Path(info.path).name for info in check(tmp_path)] == ["a.ckpt.gz", "d.ckpt"]
    assert set(read) == {"a.ckpt.gz"}
    parts = [check(tmp_path, rank=rank, world_size=2) for rank in (0, 1)]
    assert [len(part) for part in parts] == [1, 1]


def test_code_in_a_file_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = save(tmp_path / "cache", "a.ckpt", record(extra=Planted(mark)))
    expected = (
        f"{path}: holds more than tensors; reading it would run code in it, so it is refused; "
        "capture it again"
    )
    assert fault(tmp_path / "cache") == expected
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists()  # the trap was real


@pytest.mark.parametrize("kept", [0, 10, 700, 1500])
def test_a_truncated_file_is_found(tmp_path: Path, kept: int) -> None:
    save(tmp_path, "a.ckpt", record())
    path = save(tmp_path, "b.ckpt", record())
    path.write_bytes(path.read_bytes()[:kept])
    message = fault(tmp_path)
    assert message.startswith(f"{path}: cannot be read (")
    assert message.endswith(
        "); it is truncated or no feature file: delete it and run capture again"
    )


def test_not_a_feature_file(tmp_path: Path) -> None:
    path = save(tmp_path, "a.ckpt", [torch.zeros(2)])
    assert fault(tmp_path) == f"{path}: is not a feature file (a dictionary of tensors)"
    with pytest.raises(UserError, match="cannot be read"):
        load_features(tmp_path / "none.ckpt")


def test_missing_tensors(tmp_path: Path) -> None:
    path = save(tmp_path, "a.ckpt", {"input_ids": torch.arange(6)})
    assert fault(tmp_path) == (
        f"{path}: lacks 'loss_mask' and 'hidden_states' (it has input_ids); capture again with "
        "the mode you train"
    )


def test_the_width_of_other_layers(tmp_path: Path) -> None:
    path = save(tmp_path, "a.ckpt", record(width=576))
    assert fault(tmp_path, width=768, layers=[1, 4, 8, 12]) == (
        f"{path}: cache has width 576 = 3 layers x 192; the draft config wants layers "
        "[1,4,8,12] = 768; capture again or use its draft config"
    )
    assert "cache has width 576; the draft" in fault(tmp_path, width=500, layers=[1, 4])


def test_the_layers_of_the_manifest(tmp_path: Path) -> None:
    save(tmp_path, "a.ckpt", record())
    write_manifest(tmp_path, target_layer_ids=(1, 2))
    assert check(tmp_path, layers=[1, 2])
    assert fault(tmp_path) == (
        f"{tmp_path}: cache has layers [1,2] of the target; the draft config wants layers [1,3]; "
        "capture again or use its draft config"
    )


def finished(folder: Path) -> Path:
    """A finished capture of three samples."""
    for name in "abc":
        save(folder, f"data/{name}.ckpt", record())
    write_manifest(folder)
    return folder


def test_a_file_that_vanished(tmp_path: Path) -> None:
    (finished(tmp_path) / "data/c.ckpt").unlink()
    assert "1 of 3 samples have lost their file (first: data/c.ckpt)" in fault(tmp_path)
    save(tmp_path, "data/c.ckpt", record())
    assert len(check(tmp_path)) == 3


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_than_captured(tmp_path: Path, change: int) -> None:
    path = finished(tmp_path) / "data/b.ckpt"
    content = path.read_bytes()
    path.write_bytes(content[:-1] if change < 0 else content + b"0")
    assert fault(tmp_path) == (
        f"{path}: has {len(content) + change} bytes and had {len(content)} when it was captured: "
        "it is truncated or changed; run the same capture command again, it captures what is "
        "missing"
    )


def test_every_truncation_is_found(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    for name in ("data/b.ckpt", "samples.jsonl", "manifest.json"):
        content = (folder / name).read_bytes()
        for length in [*range(0, len(content), 97), len(content) - 1]:
            (folder / name).write_bytes(content[:length])
            assert name in fault(folder)
        (folder / name).write_bytes(content)
    assert len(check(folder)) == 3


def test_other_tokens_than_captured(tmp_path: Path) -> None:
    path = save(finished(tmp_path), "data/b.ckpt", record(input_ids=torch.arange(6) + 1))
    assert fault(tmp_path) == (
        f"{path}: has other tokens than were captured; every changed file is named by: "
        f"specforge-dstill verify {tmp_path}"
    )


def test_a_file_that_was_not_captured(tmp_path: Path) -> None:
    path = save(finished(tmp_path), "data/d.ckpt", record())
    assert f"{path}: is not among the samples of this capture" in fault(tmp_path)


def test_a_damaged_list_of_samples(tmp_path: Path) -> None:
    path = finished(tmp_path) / "samples.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"bytes"', b'"bites"', 1))
    assert fault(tmp_path).startswith(f"{path} does not match its checksum; set it aside with: ")


def test_another_target(tmp_path: Path) -> None:
    save(tmp_path, "a.ckpt", record())
    write_manifest(tmp_path, target="one", target_hash="abc")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(tmp_path, target_hash="abc")
        check(tmp_path, target_hash="abd", rank=1, world_size=2)  # said by the first rank
    with pytest.warns(UserWarning, match="was captured from one, whose configuration is not that"):
        check(tmp_path, target_hash="abd")


def test_another_training_of_the_target(tmp_path: Path) -> None:
    save(tmp_path, "a.ckpt", record())
    write_manifest(tmp_path, target="one", target_hash="abc", target_weights="w1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(tmp_path, target_hash="abc", target_weights="w1")
        check(tmp_path, target_hash="abc")  # on the Hub
    with pytest.warns(UserWarning, match="was captured from one, whose weights are not those"):
        check(tmp_path, target_hash="abc", target_weights="w2")


def test_tokens_that_the_target_does_not_have(tmp_path: Path) -> None:
    path = save(tmp_path, "a.ckpt", record())
    highest = int(load_features(path)["input_ids"].max())
    check(tmp_path, vocab_size=highest + 1)
    line = fault(tmp_path, vocab_size=highest)
    assert line.startswith(
        f"{path}: has token {highest}, and the target's vocabulary has {highest}"
    )
    assert "set model.target_model_path to that one" in line


def test_float8_files(tmp_path: Path) -> None:
    values, scales = encode_float8(torch.ones(6, 8), layers=2)
    for name in ("a.ckpt", "b.ckpt"):
        save(tmp_path, name, record(hidden_states=values, hidden_states_scale=scales))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # float8 is decoded as it is read: nothing to warn of
        assert len(check(tmp_path, dtype=torch.bfloat16)) == 2
    path = save(tmp_path, "b.ckpt", record(hidden_states=values))
    assert fault(tmp_path).startswith(f"{path}: lacks 'hidden_states_scale' (it has ")
    path = save(tmp_path, "b.ckpt", record(hidden_states=values, hidden_states_scale=scales[1:]))
    assert "differ in length" in fault(tmp_path)
    path = save(tmp_path, "b.ckpt", record(hidden_states=values, hidden_states_scale=scales[:, :1]))
    assert fault(tmp_path) == f"{path}: has 1 scales a token for 2 layers; capture it again"
    path = save(tmp_path, "b.ckpt", record())
    assert fault(tmp_path) == (
        f"{path}: its states are float32, those of the cache's first file are float8; a cache is "
        "one or the other: capture into another folder"
    )


def test_lengths_that_differ(tmp_path: Path) -> None:
    path = save(tmp_path, "a.ckpt", record(hidden_states=torch.zeros(5, 8)))
    assert fault(tmp_path) == (
        f"{path}: its tensors differ in length (input_ids 6, loss_mask 6, hidden_states 5); "
        "capture it again"
    )


def test_a_sample_too_short_for_a_block(tmp_path: Path) -> None:
    path = save(tmp_path, "a.ckpt", record(loss_mask=torch.tensor([0, 1, 0, 1, 0, 1])))
    assert fault(tmp_path) == (
        f"{path}: no two neighbouring tokens are scored, so no block fits; delete the file"
    )
    path = save(tmp_path, "a.ckpt", record())
    assert fault(tmp_path, max_length=4) == (
        f"{path}: no two neighbouring tokens are scored in its first 4, so no block fits; "
        "delete the file"
    )


def test_an_empty_folder(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        assert fault(folder) == (
            f"{folder}: no feature files there; make them with: specforge-dstill capture"
        )


def test_another_dtype_is_a_warning(tmp_path: Path) -> None:
    for name in ("a.ckpt", "b.ckpt"):
        save(tmp_path, name, record(hidden_states=torch.zeros(6, 8, dtype=torch.bfloat16)))
    with pytest.warns(UserWarning, match="are bfloat16 and the draft is float32") as caught:
        check(tmp_path, dtype=torch.float32)
    assert len(caught) == 1


def test_an_unfinished_capture_is_a_warning(tmp_path: Path) -> None:
    save(tmp_path, "a.ckpt", record())
    (tmp_path / "capture.json").write_text("{}")
    with pytest.warns(UserWarning, match="its capture is not finished"):
        check(tmp_path, rank=0, world_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(tmp_path, rank=1, world_size=2)  # one rank of a run tells it


def test_a_broken_manifest(tmp_path: Path) -> None:
    save(tmp_path, "a.ckpt", record())
    for text in ("{", "[]", "{}", '{"format": 2}', '{"format": 9, "checksum": ""}'):
        (tmp_path / "manifest.json").write_text(text)
        assert fault(tmp_path).startswith(f"{tmp_path}/manifest.json: not a cache's manifest: ")


@pytest.mark.parametrize("number", [1, 3])
def test_a_manifest_of_another_format(tmp_path: Path, number: int) -> None:
    """Also without a checksum, as format 1 was."""
    save(tmp_path, "a.ckpt", record())
    content = {"format": number, "target": "tiny"}
    for text in (json.dumps(content).encode(), sealed_bytes(content)):
        (tmp_path / "manifest.json").write_bytes(text)
        assert fault(tmp_path) == (
            f"{tmp_path}/manifest.json: its format is {number}, and this version reads 2; use the "
            "version that wrote it, or capture into another folder"
        )
