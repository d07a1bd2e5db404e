"""Collecting more samples takes more time, not more memory."""

from __future__ import annotations

from pathlib import Path

from tests import tiny
from tests.faults.conftest import Works
from tests.faults.jobs import finish

FEW, TEN_TIMES = 10, 100
LENGTH = 2200


def test_ten_times_the_samples_take_the_same_memory(works: Works, tmp_path: Path) -> None:
    """To keep what was read of each, 51 MB, would be an eighth more than the rest of it."""
    few = tiny.save_features(tmp_path / "few", samples=FEW, length=LENGTH)
    many = tmp_path / "many" / "data" / "00000"
    many.mkdir(parents=True)
    for index in range(TEN_TIMES):
        source = few / "data" / "00000" / f"{index % FEW:08d}.ckpt"
        (many / f"{index:08d}.ckpt").hardlink_to(source)
    peaks = []
    for name in ("few", "many"):
        folder = works.folder(tmp_path / f"{name} collected")
        words = (f"data.hidden_states_path={tmp_path / name}", "data.max_length=4096")
        job = finish(folder, (*works.collect.words, *words, "dstill.collect.shard_size=4"))
        peaks.append(job.peak_bytes)
    print(f"peak memory: {peaks[0] / 1e6:.0f} MB, with ten times the samples {peaks[1] / 1e6:.0f}")
    assert peaks[1] < 1.1 * peaks[0]
