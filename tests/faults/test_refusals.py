"""Disks that are full or read-only, files that vanish, signals: one line, and nothing is lost."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.child import Fault
from tests.faults.conftest import Work, Works, told
from tests.faults.jobs import finish, start
from tests.modes.running import on_torchrun

BOTH = pytest.mark.parametrize("kind", ["capture", "collect"])
STOPPED = 128 + signal.SIGTERM


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[[Path, str], None]]:
    """Mount a tmpfs with options, or change those of one that is mounted."""
    mounted: list[Path] = []

    def mount(at: Path, options: str) -> None:
        if at in mounted:
            subprocess.run(["mount", "-o", f"remount,{options}", at], check=True)
            return
        at.mkdir(exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", at]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("no mount command here")
        if done.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
        mounted.append(at)

    yield mount
    for at in mounted:
        subprocess.run(["umount", at], check=True)


@BOTH
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk(
    works: Works,
    tmp_path: Path,
    tmpfs: Callable[[Path, str], None],
    kind: str,
    ranks: int,
) -> None:
    work: Work = getattr(works, kind)
    folder = works.folder(tmp_path)
    output = folder / work.output
    room = sum(-(-len(content) // 4096) * 4096 for content in work.files.values())
    tmpfs(output, f"size={room // 2 // 4096 * 4096}")
    job = start(folder, work.words, ranks=ranks)
    # A rank may be done with its share before the disk is full, or be stopped while it works or
    # leaves the word to the first.
    assert {2} <= set(job.end()) <= {0, 2, STOPPED, -signal.SIGTERM}, job.printed
    # What a library's destructor says when its rank is stopped while it loads is not ours.
    ignored = job.printed.count("Exception ignored in")
    assert job.printed.count("Traceback") == ignored, job.printed
    lines = [line for line in job.printed.splitlines() if "error:" in line]
    assert 1 <= len(lines) <= ranks
    for line in lines:
        assert "cannot be written: No space left on device" in line
        assert "run the same command again" in line
    kept = work.kept(folder)
    assert 0 < len(kept) < len(work.files)
    tmpfs(output, f"size={4 * room}")
    finish(folder, work.words, ranks=ranks)
    work.check(folder)


@BOTH
def test_a_read_only_folder(
    works: Works, tmp_path: Path, tmpfs: Callable[[Path, str], None], kind: str
) -> None:
    work: Work = getattr(works, kind)
    folder = works.folder(tmp_path)
    tmpfs(folder / work.output, "ro")
    line = told(start(folder, work.words), [2])
    assert "cannot be written: Read-only file system" in line
    tmpfs(folder / work.output, "rw")
    finish(folder, work.words)
    work.check(folder)
    # Complete, it may be read-only again: the command finds nothing to do, and others read it.
    tmpfs(folder / work.output, "ro")
    finish(folder, work.words)
    work.check(folder)


@BOTH
def test_a_stopped_run(works: Works, tmp_path: Path, kind: str) -> None:
    work: Work = getattr(works, kind)
    folder = works.folder(tmp_path)
    job = start(folder, work.words)
    job.wait_until(lambda: bool(work.kept(folder)))
    job.ranks[0].terminate()
    line = told(job, [STOPPED])
    assert line.startswith("stopped by SIGTERM: what was finished stays")
    kept = work.kept(folder)
    assert kept
    stamps = {name: (folder / work.output / name).stat().st_mtime_ns for name in kept}
    finish(folder, work.words)
    work.check(folder)
    for name, stamp in stamps.items():
        assert (folder / work.output / name).stat().st_mtime_ns == stamp


def test_a_feature_file_that_vanishes_while_it_is_collected_from(
    works: Works, tmp_path: Path
) -> None:
    work, folder = works.collect, works.folder(tmp_path)
    cache = shutil.copytree(works.inputs / "cache", folder / "cache")
    words = (*work.words, f"data.hidden_states_path={cache}")
    last = sorted(cache.rglob("*.ckpt"))[-1]
    fault = Fault(folder / work.output, 8, vanish=last)
    line = told(start(folder, words, fault=fault), [2])
    assert str(last) in line
    assert "No such file" in line
    kept = work.kept(folder)
    assert kept
    shutil.copy(works.inputs / "cache" / last.relative_to(cache), last)
    finish(folder, words)
    work.check(folder)


def test_a_rank_that_dies_under_torchrun(works: Works, tmp_path: Path) -> None:
    """The other is stopped, says so in one line, and what both had finished stays."""
    work, folder = works.collect, works.folder(tmp_path)
    output = folder / work.output
    script = folder / "rank.py"
    script.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.faults.child import Fault, train\n"
        "if os.environ['RANK'] == '1':\n"
        f"    sys.addaudithook(Fault(Path({str(output)!r}), 14))\n"
        f"sys.exit(train.main({list(work.words[1:])!r}))\n"
    )
    done = on_torchrun(script, ranks=2)
    ended = time.time()
    assert done.status == 1, done.err
    assert "exitcode  : -9" in done.err
    lines = [line for line in done.err.splitlines() if line.startswith("specforge-dstill: stopped")]
    assert len(lines) == 1, done.err
    assert ended - max(path.stat().st_mtime for path in output.iterdir()) < 30
    assert work.kept(folder)
    assert not (output / "manifest.json").exists()
    finish(folder, work.words, ranks=2)
    work.check(folder)
