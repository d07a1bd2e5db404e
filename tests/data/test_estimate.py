"""What features and trajectories take: by hand, by a slow loop, and against real files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specforge_dstill.data.capture_transformers import TransformersExtractor
from specforge_dstill.data.estimate import CacheCost, Counts, StoreCost
from specforge_dstill.data.estimate_time import Hours, Room, Training
from specforge_dstill.data.manifest import CacheManifest
from specforge_dstill.maths.trajectory import Trajectory
from specforge_dstill.trajectory_store import SampleRecord, StoreIdentity, open_writer
from specforge_dstill.trajectory_store.format import ShardFormat
from tests.data.caches import LAYERS, WIDTH, capture_here, make_manifest, make_samples

#: A million samples of 4,096 tokens, each with 512 blocks.
SAMPLES, TOKENS, BLOCKS = 1_000_000, 4_096_000_000, 512_000_000


def paper_store(record: str = "commit", **changes: Any) -> StoreCost:
    values = {
        "block_size": 16, "steps": 8, "top_k": 16, "record": record, "logp_dtype": "float16",
        "samples": SAMPLES, "blocks": BLOCKS, "shard_size": 64,
    }  # fmt: skip
    return StoreCost.of(**(values | changes))


def test_the_papers_features_by_hand() -> None:
    """GPT-OSS-120B: five layers of 2,880, bfloat16."""
    cost = CacheCost(layers=5, hidden=2880, dtype="bfloat16", samples=SAMPLES, tokens=TOKENS)
    # 5 * 2,880 = 14,400 values of 2 bytes, an id and a mask of 8 bytes each.
    assert cost.bytes_per_token == 28_800 + 16
    # 4,096 * 28,816 = 118,030,336 bytes a sample; a million of them, and a file's own 1.9 kB.
    assert cost.total == 118_030_336_000_000 + SAMPLES * cost.bytes_per_file
    assert 1_000 < cost.bytes_per_file < 3_000
    # The paper's longest sequence, 24,576 tokens: 24,576 * 28,816 = 708,182,016.
    longest = CacheCost(layers=5, hidden=2880, dtype="bfloat16", samples=1, tokens=24_576)
    assert longest.total - longest.bytes_per_file == 708_182_016


def test_the_papers_features_in_eight_bits_by_hand() -> None:
    cost = CacheCost(layers=5, hidden=2880, dtype="fp8", samples=SAMPLES, tokens=TOKENS)
    # 14,400 values of 1 byte, five scales of 4 bytes, id and mask: 14,436.
    assert cost.bytes_per_token == 14_436
    assert cost.total == 59_129_856_000_000 + SAMPLES * cost.bytes_per_file


def test_the_papers_trajectories_by_hand() -> None:
    """B = 16, k = 16, 512 blocks a sample, the committing pass only."""
    cost = paper_store()
    # anchor 4; 16 tokens of 4; 16 passes of 1; 15 * 16 = 240 ids of 4 and log-probabilities of 2.
    assert cost.bytes_per_block == 4 + 64 + 16 + 960 + 480 == 1_524
    # 512 * 1,524 = 780,288 bytes a sample.
    assert cost.blocks * cost.bytes_per_block == 780_288_000_000
    assert cost.shards == 15_625
    overhead = cost.total - 780_288_000_000
    assert overhead == SAMPLES * cost.bytes_per_row + 15_625 * cost.bytes_per_shard
    assert overhead < 0.001 * cost.total


def test_the_papers_trajectories_with_every_pass_by_hand() -> None:
    cost = paper_store("full")
    # Eight passes of 240 ids and log-probabilities: 84 + 8 * 1,440 = 11,604.
    assert cost.bytes_per_block == 11_604
    assert cost.blocks * cost.bytes_per_block == 5_941_248_000_000
    assert paper_store("commit").recording("full") == cost
    assert cost.recording("commit") == paper_store("commit")


def test_other_log_probabilities() -> None:
    assert paper_store(logp_dtype="float32").bytes_per_block == 1_524 + 240 * 2


@pytest.mark.parametrize("record", ["commit", "full"])
def test_a_block_against_a_slow_loop_over_its_values(record: str) -> None:
    cost = paper_store(record, block_size=5, steps=3, top_k=2)
    total = 4 + 5 * 4 + 5 * 1
    for _ in range(3 if record == "full" else 1):
        for _position in range(4):
            for _kept in range(2):
                total += 4 + 2
    assert cost.bytes_per_block == total


def test_costs_add_up_and_nothing_costs_nothing() -> None:
    assert paper_store(samples=0, blocks=0).total == 0
    assert CacheCost(layers=5, hidden=2880, dtype="fp8", samples=0, tokens=0).total == 0
    one, two = paper_store(samples=640, blocks=5), paper_store(samples=1280, blocks=9)
    assert one.total + two.total == paper_store(samples=1920, blocks=14).total


def write_store(folder: Path, *, record: str, samples: int, blocks: int) -> StoreIdentity:
    """Random records, ``blocks`` a sample."""
    identity = StoreIdentity(
        block_size=16, steps=8, top_k=16, record=record, commit="greedy", temperature=1.0,
        mask_token_id=0, vocab_size=1000, max_length=256, anchors_per_sample=blocks, seed=1,
        teacher_hash="ab" * 32, draft_config={"num_hidden_layers": 2}, versions={"torch": "2"},
    )  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    top = (blocks, identity.passes, 15, 16)
    ids = [f"data/00000/{index:08d}.ckpt" for index in range(samples)]
    writer = open_writer(
        str(folder), identity=identity, sample_ids=ids, shard_size=16, logp_dtype="float16"
    )
    for index in writer.missing():
        writer.write_shard(
            index,
            [
                SampleRecord(
                    sample_id=sample_id,
                    token_hash="0" * 32,
                    length=200,
                    anchors=torch.arange(blocks),
                    trajectory=Trajectory(
                        endpoint=torch.randint(1, 1000, (blocks, 16), generator=draw),
                        commit_pass=torch.randint(1, 9, (blocks, 16), generator=draw),
                        top_ids=torch.randint(1, 1000, top, generator=draw),
                        top_logp=-torch.rand(top, generator=draw),
                    ),
                )
                for sample_id in writer.samples_of(index)
            ],
        )
    writer.finish()
    return identity


@pytest.mark.parametrize("record", ["commit", "full"])
def test_against_the_bytes_of_a_real_store(tmp_path: Path, record: str) -> None:
    write_store(tmp_path, record=record, samples=70, blocks=8)
    real = sum(path.stat().st_size for path in tmp_path.iterdir())
    told = paper_store(record, samples=70, blocks=70 * 8, shard_size=16)
    assert told.shards == 5
    assert told.total == pytest.approx(real, rel=0.02)


def test_the_numbers_are_the_formats_own() -> None:
    form = paper_store().form
    assert isinstance(form, ShardFormat)
    assert {name: values for name, (values, _) in paper_store().columns.items()} == (
        form.values_per_block
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "fp8"])
def test_against_the_bytes_of_a_real_cache(tmp_path: Path, model: Any, dtype: str) -> None:
    """Feature files to within 0.1 kB each: the padding between their tensors."""
    samples = make_samples([40, 23, 64, 51, 9, 30, 33])
    manifest = make_manifest(dtype=dtype, conversation_count=len(samples))
    if dtype == "fp8":
        keys = (*manifest.keys, "hidden_states_scale")
        manifest = make_manifest(dtype="float8_e4m3fn", keys=keys)
    done = capture_here(tmp_path, samples, TransformersExtractor(model, LAYERS), manifest=manifest)
    assert isinstance(done, CacheManifest)
    assert done.samples == len(samples)
    files = list(tmp_path.rglob("*.ckpt"))
    real = sum(path.stat().st_size for path in files)
    told = CacheCost(
        layers=len(LAYERS),
        hidden=WIDTH // len(LAYERS),
        dtype=dtype,
        samples=len(samples),
        tokens=sum(map(len, samples)),
    )
    assert told.total == pytest.approx(real, abs=250 * len(files))


def test_counts_are_scaled() -> None:
    counts = Counts(9, 90, 18, "ten", scored=50, anchors=40, left_out=1)
    assert counts.scaled(100, 10) == Counts(
        90, 900, 180, "ten", scored=500, anchors=400, left_out=10
    )
    assert counts.scaled(10, 10) == counts


def test_hours_by_hand() -> None:
    hours = Hours("capture", 7_200_000, "tokens", rate=500.0, ranks=4, source="given")
    assert hours.hours == 1.0
    training = Training("student", samples=1001, batch=8, epochs=3, seconds_per_step=2.0)
    assert training.steps == 126 * 3
    assert training.hours == pytest.approx(126 * 3 * 2 / 3600)


def test_room() -> None:
    assert Room(["cache"], needed=10, free=10).fits
    short = Room(["cache", "trajectories"], needed=3_000_000, free=1_000_000)
    assert not short.fits
    assert "DOES NOT FIT" in short.text
    assert "2.00 MB too few" in short.text
