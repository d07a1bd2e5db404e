"""A store of the tiny cache, collected by a random drafter, for the tests of verbs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specforge_dstill.cli import main
from specforge_dstill.data.feature_files import load_features
from specforge_dstill.maths.anchors import draw_anchors
from specforge_dstill.modes.draws import sample_generator
from specforge_dstill.token_hash import token_hash
from specforge_dstill.trajectory_store import SampleRecord, StoreIdentity, open_writer
from tests import tiny
from tests.modes.support import make_drafter, roll

STEPS, TOP_K, SHARD = 3, 6, 4
RunVerb = Callable[..., str]


@pytest.fixture
def run_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunVerb:
    """Runs a verb in a folder of its own; gives what it printed, or its error line."""
    monkeypatch.chdir(tmp_path)

    def run(verb: str, *words: str | Path, status: int = 0) -> str:
        capsys.readouterr()
        assert main([verb, *map(str, words)]) == status
        shown = capsys.readouterr()
        return shown.err if status else shown.out

    return run


def store_identity(*, record: str = "commit", top_k: int = TOP_K) -> StoreIdentity:
    """Of stores on the tiny target."""
    return StoreIdentity(
        block_size=tiny.BLOCK_SIZE,
        steps=STEPS,
        top_k=top_k,
        record=record,
        commit="greedy",
        temperature=1.0,
        mask_token_id=tiny.MASK_ID,
        vocab_size=tiny.VOCAB,
        max_length=64,
        anchors_per_sample=6,
        seed=1,
        teacher_hash="ab" * 32,
        draft_config=tiny.draft_config(),
        versions={"torch": "2"},
    )


def collect(
    store: str | Path, cache: Path, *, record: str = "commit", finished: bool = True
) -> None:
    """Roll out the blocks of every sample; unfinished stores lack their second shard."""
    drafter = make_drafter()
    ids = sorted(str(path.relative_to(cache)) for path in cache.rglob("*.ckpt"))

    def made(sample_id: str) -> SampleRecord:
        features = load_features(cache / sample_id)
        anchors = draw_anchors(
            features["loss_mask"], count=6, generator=sample_generator(1, sample_id, "anchors")
        )
        sample = {name: tensor[None] for name, tensor in features.items()}
        return SampleRecord(
            sample_id=sample_id,
            token_hash=token_hash(features["input_ids"]),
            length=len(features["input_ids"]),
            anchors=anchors,
            trajectory=roll(
                drafter, sample, anchors, steps=STEPS, top_k=TOP_K, every_pass=record == "full"
            ),
        )

    writer = open_writer(
        str(store),
        identity=store_identity(record=record),
        sample_ids=ids,
        shard_size=SHARD,
        logp_dtype="float16",
    )
    for index in writer.missing():
        if finished or index != 1:
            writer.write_shard(index, [made(sample_id) for sample_id in writer.samples_of(index)])
    if finished:
        writer.finish()


@pytest.fixture(scope="session")
def tiny_store(tiny_inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished store of the tiny cache's 12 samples; do not change it."""
    folder = tmp_path_factory.mktemp("stores") / "commit"
    collect(folder, tiny_inputs / "cache")
    return folder
