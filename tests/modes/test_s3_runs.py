"""Trajectories in S3: moto's server stands in for it, spoken to over HTTP by every process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from specforge_dstill.trajectory_store.cache import CACHE_VARIABLE
from tests import tiny
from tests.modes.conftest import Stages
from tests.modes.running import kill, start_on_two_ranks, store_bytes, train, write_run

URI = "s3://bucket/some/where"
SHARDS = 24


@dataclass(frozen=True)
class Bucket:
    """The bucket, seen past our own code."""

    client: Any

    def names(self) -> list[str]:
        return [key.rpartition("/")[2] for key in self._keys()]

    def files(self) -> dict[str, bytes]:
        return {
            key.rpartition("/")[2]: self.client.get_object(Bucket="bucket", Key=key)["Body"].read()
            for key in self._keys()
        }

    def _keys(self) -> list[str]:
        found = self.client.list_objects_v2(Bucket="bucket").get("Contents", [])
        return [item["Key"] for item in found]

    def times_written(self) -> dict[str, int]:
        """How often each object was put: the bucket keeps every version."""
        times: dict[str, int] = {}
        for item in self.client.list_object_versions(Bucket="bucket")["Versions"]:
            name = item["Key"].rpartition("/")[2]
            times[name] = times.get(name, 0) + 1
        return times


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        CACHE_VARIABLE: str(tmp_path / "copies"),
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    client.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
    yield Bucket(client)
    S3FileSystem.clear_instance_cache()
    server.stop()


def whole(names: list[str]) -> set[str]:
    """Shards that are in place with their notes."""
    return {name for name in names if name.endswith(".arrow") and f"{name}.json" in names}


def test_collect_on_two_ranks_kill_resume_and_train(
    stages: Stages, tmp_path: Path, bucket: Bucket
) -> None:
    """SIGKILL to torchrun and its ranks once a few shards are there; one rank goes on."""
    cache = tiny.save_features(tmp_path / "cache", samples=SHARDS)
    write_run(tmp_path, stages.inputs, data__hidden_states_path=str(cache))
    start = f"model.draft_checkpoint_path={stages.folder / 'out/teacher'}"
    one = ("dstill.collect.shard_size=1", "training.num_epochs=1")
    words = (start, f"dstill.trajectories={URI}", *one)

    with start_on_two_ranks(tmp_path, "dstill_collect", *words) as job:
        deadline = time.monotonic() + 120
        while len(whole(bucket.names())) < 3:
            assert job.poll() is None, job.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        kill(job)
    before = whole(bucket.names())
    assert 3 <= len(before) < SHARDS
    assert "manifest.json" not in bucket.names()
    refused = train(tmp_path, "dstill_student", *words, "output_dir=out/early").error
    assert "s3://bucket/some/where: collection is not finished" in refused

    resumed = train(tmp_path, "dstill_collect", *words)
    assert resumed.status == 0, resumed.err
    times = bucket.times_written()
    assert {times[name] for name in before} == {1}
    local = train(tmp_path, "dstill_collect", *words, "dstill.trajectories=local")
    assert local.status == 0, local.err
    found = {name: data for name, data in bucket.files().items() if not name.endswith("w.json")}
    assert found == store_bytes(tmp_path / "local")
    assert not [path for path in (tmp_path / "copies").rglob("*") if path.is_file()]

    losses = []
    for run, store in {"away": URI, "here": "local"}.items():
        own = (f"dstill.trajectories={store}", f"run_id={run}")
        student = train(tmp_path, "dstill_student", *words, *own)
        assert student.status == 0, student.err
        losses.append([metrics["loss"] for metrics in student.metrics.values()])
    assert losses[0] == losses[1]
    assert len(losses[0]) == SHARDS // 4
    again = train(tmp_path, "dstill_collect", *words)
    assert again.out.startswith("trajectories complete already: ")
    assert again.out.rstrip().endswith(f"in {URI}")


def test_a_bucket_that_is_not_there_is_one_line(stages: Stages, bucket: Bucket) -> None:
    line = train(stages.folder, "dstill_collect", "dstill.trajectories=s3://none/x").error
    assert line.startswith("s3://none/x/identity.json cannot be written: ")
    assert line.endswith("; check its name and your rights to it")
