"""A capture and a collection, small but of many files, and what each leaves undisturbed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from specforge_dstill.data.manifest import CacheManifest, read_samples
from specforge_dstill.trajectory_store import open_store, verify_store
from tests import tiny
from tests.faults.jobs import Job, finish
from tests.modes.running import train, write_run

SAMPLES = 14
CACHE, STORE = "captured", "traj"


@dataclass(frozen=True)
class Work:
    """A command, where it writes, and what it left there and took when nothing went wrong."""

    words: tuple[str, ...]
    output: str
    files: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0

    def made(self, folder: Path) -> dict[str, bytes]:
        """Every file of the output."""
        output = folder / self.output
        return {
            str(path.relative_to(output)): path.read_bytes()
            for path in sorted(output.rglob("*"))
            if path.is_file()
        }

    def check(self, folder: Path) -> None:
        """The output is that of an undisturbed run, byte for byte, and whole by its own account."""
        made = self.made(folder)
        assert made.keys() == self.files.keys()
        assert made == self.files
        output = folder / self.output
        if self.output == STORE:
            ids = list(open_store(str(output)).sample_ids)
            assert verify_store(output) == []
        else:
            manifest = CacheManifest.read(output)
            assert manifest is not None
            ids = [row["sample_id"] for row in read_samples(output, manifest)]
        assert len(ids) == len(set(ids)) == SAMPLES

    def kept(self, folder: Path) -> list[str]:
        """The finished pieces that an unfinished run left; each must be as in the end."""
        output = folder / self.output
        found = [path for path in output.rglob("*") if path.suffix in (".arrow", ".ckpt")]
        pieces = {str(path.relative_to(output)): path.read_bytes() for path in found}
        assert all(self.files[name] == content for name, content in pieces.items())
        return list(pieces)


@dataclass(frozen=True)
class Works:
    """Inputs (``target``, ``cache``, ``teacher``), and the commands over them."""

    inputs: Path
    capture: Work
    collect: Work

    def folder(self, at: Path) -> Path:
        """A folder with the run file alone."""
        at.mkdir(parents=True, exist_ok=True)
        write_run(at, self.inputs)
        return at


@pytest.fixture(scope="session")
def works(tmp_path_factory: pytest.TempPathFactory) -> Works:
    inputs = tmp_path_factory.mktemp("faults")
    tiny.save_target(inputs / "target")
    tiny.save_features(inputs / "cache", samples=SAMPLES)
    tiny.write_json(inputs / "draft.json", tiny.draft_config())
    conversations(inputs / "answers.jsonl")
    write_run(inputs, inputs)
    trained = train(inputs, "dstill_teacher", "training.max_steps=1", "output_dir=teacher")
    assert trained.status == 0, trained.err
    capture = (
        *("capture", "--conversations", str(inputs / "answers.jsonl"), "--output", CACHE),
        *("--shard-size", "3", "--batch-tokens", "64"),
    )
    collect = (
        *("train", "--mode", "dstill_collect", "dstill.collect.shard_size=2"),
        f"model.draft_checkpoint_path={inputs / 'teacher'}",
    )
    return Works(inputs, undisturbed(inputs, capture, CACHE), undisturbed(inputs, collect, STORE))


def conversations(path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, 50, (SAMPLES, 24), generator=generator).tolist()
    rows = [
        {
            "id": f"c{i}",
            "conversations": [
                {"role": "user", "content": " ".join(f"w{w}" for w in row[:4])},
                {"role": "assistant", "content": " ".join(f"w{w}" for w in row[4 : 16 + i % 8])},
            ],
        }
        for i, row in enumerate(words)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def undisturbed(folder: Path, words: tuple[str, ...], output: str) -> Work:
    """The command run once without faults; the run after it, warm, is timed."""
    finish(folder, words)
    files = Work(words, output).made(folder)
    again = folder / "again"
    again.mkdir(exist_ok=True)
    write_run(again, folder)
    begun = time.monotonic()
    finish(again, words)
    work = Work(words, output, files, time.monotonic() - begun)
    work.check(again)
    return work


def told(job: Job, statuses: list[int | None]) -> str:
    """The one line of a job that ended with these statuses."""
    assert job.end() == statuses, job.printed
    return job.told
