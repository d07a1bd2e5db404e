"""What our modes make of feature files that change, hold code, hold NaN or hold float8."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specforge_dstill.data.float8 import decode_float8, encode_float8
from specforge_dstill.modes import assembly
from specforge_dstill.modes.feature_source import NamedReader
from tests import tiny
from tests.data.caches import Planted
from tests.modes.conftest import Stages
from tests.modes.running import Outcome, store_bytes, train

SAMPLE = "data/00000/00000004.ckpt"


def copied(stages: Stages, folder: Path) -> Path:
    """The run's folder with a cache of its own, ``cache``."""
    stages.copy_to(folder)
    shutil.copytree(stages.inputs / "cache", folder / "cache")
    return folder


def run(folder: Path, mode: str, *words: str) -> Outcome:
    store = "new" if mode == "dstill_collect" else "traj"
    own = () if mode == "dflash" else (f"dstill.trajectories={store}",)
    return train(folder, mode, "data.hidden_states_path=cache", "output_dir=out/new", *own, *words)


def after_the_check(patch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Change a file once the check at the start of a run has passed."""
    check = assembly.check_cache

    def check_and_change(*args: Any, **options: Any) -> Any:
        found = check(*args, **options)
        change()
        return found

    patch.setattr(assembly, "check_cache", check_and_change)


def planted(path: Path, mark: Path) -> bytes:
    """A feature file that runs code where code is let run, packed as its name says."""
    buffer = io.BytesIO()
    torch.save({**torch.load(tiny_sample(path), weights_only=True), "x": Planted(mark)}, buffer)
    content = buffer.getvalue()
    return gzip.compress(content) if path.suffix == ".gz" else content


def tiny_sample(path: Path) -> Any:
    content = path.read_bytes()
    return io.BytesIO(gzip.decompress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("packed", [False, True], ids=["ckpt", "gz"])
@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("dstill_teacher", ()),
        ("dstill_teacher", ("data.dataloader_num_workers=2",)),
        ("dstill_student", ()),
        ("dstill_collect", ()),
        ("dflash", ()),
    ],
    ids=["teacher", "threads", "student", "collect", "dflash"],
)
def test_code_that_comes_after_the_check_is_not_run(
    stages: Stages,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    words: tuple[str, ...],
    packed: bool,
) -> None:
    folder = copied(stages, tmp_path)
    path = folder / "cache" / SAMPLE
    if packed:
        whole = path.with_name(f"{path.name}.gz")
        whole.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        path = whole
        if mode == "dstill_student":  # which needs records by the file's new name
            shutil.rmtree(folder / "traj")
            collected = run(folder, "dstill_collect", "dstill.trajectories=traj")
            assert collected.status == 0, collected.err
    mark = tmp_path / "ran"
    trap = planted(path, mark)
    if mode == "dflash":  # SpecForge's own: nothing of ours has looked at the file
        path.write_bytes(trap)
    else:
        after_the_check(monkeypatch, lambda: path.write_bytes(trap) and None)
    environment = dict(os.environ)
    assert run(folder, mode, *words).error == (
        f"{path if mode != 'dstill_collect' else path.relative_to(folder)}: holds more than "
        "tensors; reading it would run code in it, so it is refused; capture it again"
    )
    assert not mark.exists()
    assert dict(os.environ) == environment
    torch.load(tiny_sample(path), weights_only=False)
    assert mark.exists()  # the trap was real


def test_a_file_that_is_damaged_or_gone_after_the_check_is_named(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(stages, tmp_path)
    path = folder / "cache" / SAMPLE
    content = path.read_bytes()
    listed = NamedReader.read
    for change in (lambda: path.write_bytes(content[:900]) and None, path.unlink):

        def read_and_change(
            reader: NamedReader, limit: int | None = None, change: Any = change
        ) -> Any:
            refs = listed(reader, limit)
            change()
            return refs

        with monkeypatch.context() as patch:
            patch.setattr(NamedReader, "read", read_and_change)
            assert f"{path}: cannot be read (" in run(folder, "dstill_teacher").error
        path.write_bytes(content)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("mode", ["dstill_teacher", "dstill_student", "dstill_collect"])
def test_states_that_are_not_finite_are_named(
    stages: Stages, tmp_path: Path, mode: str, value: float
) -> None:
    folder = copied(stages, tmp_path)
    path = folder / "cache" / SAMPLE
    sample = torch.load(path, weights_only=True)
    sample["hidden_states"][3, 7] = value
    torch.save(sample, path)
    line = run(folder, mode).error
    place = f"cache/{SAMPLE}" if mode == "dstill_collect" else SAMPLE
    assert line.startswith(f"{place}: its hidden_states hold NaN or infinite values")
    assert "specforge-dstill verify CACHE" in line
    assert not list(folder.glob("new/shard-*.arrow"))[1:]  # the shard of the sample is not there


def as_float8(folder: Path) -> None:
    """Make a cache float8, and beside it one of the numbers that this decodes to."""
    for path in sorted((folder / "cache").rglob("*.ckpt")):
        sample = torch.load(path, weights_only=True)
        values, scales = encode_float8(sample["hidden_states"], layers=len(tiny.LAYERS))
        torch.save({**sample, "hidden_states": values, "hidden_states_scale": scales}, path)
        plain = folder / "decoded" / path.relative_to(folder / "cache")
        plain.parent.mkdir(parents=True, exist_ok=True)
        torch.save({**sample, "hidden_states": decode_float8(values, scales)}, plain)


def test_float8_features_are_those_they_decode_to(stages: Stages, tmp_path: Path) -> None:
    """Every stage, step by step the same numbers; and without a word about the dtype."""
    folder = copied(stages, tmp_path)
    as_float8(folder)
    words = ("data.max_length=45", "data.dataloader_num_workers=2")
    found = {}
    for name in ("cache", "decoded"):
        for mode in ("dstill_teacher", "dstill_collect", "dstill_student"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                outcome = train(
                    folder,
                    mode,
                    f"data.hidden_states_path={name}",
                    f"dstill.trajectories=traj-{name}",
                    f"output_dir=out/{name}",
                    *words,
                )
            assert outcome.status == 0, outcome.err
            assert not [w for w in caught if "features are" in str(w.message)]
            found[name, mode] = {
                step: {key: values[key] for key in ("loss", "acc", "grad_norm")}
                for step, values in outcome.metrics.items()
            }
    for mode in ("dstill_teacher", "dstill_student"):
        assert found["cache", mode] == found["decoded", mode]
        assert found["cache", mode]
    assert store_bytes(folder / "traj-cache") == store_bytes(folder / "traj-decoded")


def test_specforges_own_modes_refuse_float8(stages: Stages, tmp_path: Path) -> None:
    folder = copied(stages, tmp_path)
    as_float8(folder)
    line = run(folder, "dflash").error
    assert "its states are float8 with scales, which --mode dflash cannot read" in line
