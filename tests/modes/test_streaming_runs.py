"""Runs on features that a capture server streams: SpecForge's own consumer, over a shared folder.

Mooncake and the patched SGLang server need GPUs; their place is taken by SpecForge's store in a
folder, filled beforehand with what the server would have put there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from specforge.runtime.data_plane.disaggregated import SharedDirFeatureStore
from specforge.runtime.data_plane.streaming_ref_channel import StreamingRefChannel
from specforge.training import disaggregated

from specforge_dstill.runfile import merge, read_document
from tests.modes.conftest import Stages
from tests.modes.running import STREAMING, draft_of, same_weights, train, write_run
from tests.modes.support import make_sample

SAMPLES = 8
STREAMED: dict[str, Any] = {
    "data": {"hidden_states_path": "", "prompts_path": "prompts.jsonl"},
    "training": {"max_steps": 2},
    "dstill": {"trajectories": "online"},
    "deployment": STREAMING,
}


def write_streaming_run(folder: Path, inputs: Path) -> None:
    """The tiny run file with a capture server in the place of its cache."""
    write_run(folder, inputs)
    path = folder / "dstill.yaml"
    path.write_text(yaml.safe_dump(merge(read_document(str(path)), STREAMED)), encoding="utf-8")


def captured(folder: Path, mode: str) -> SharedDirFeatureStore:
    """Samples as the capture server leaves them: tensors in a store, references in a channel."""
    store = SharedDirFeatureStore(str(folder / "captured"), "s", retain_on_release=True)
    channel = StreamingRefChannel(str(folder / "control" / "refs.jsonl"))
    for index in range(SAMPLES):
        sample = make_sample(30 + index, seed=index)
        metadata = {"run_id": mode, "strategy": mode, "num_tokens": 30 + index}
        channel.publish(store.put(sample, sample_id=f"{mode}:{index}", metadata=metadata))
    channel.close()
    return store


@pytest.mark.parametrize("mode", ["dstill_teacher", "dstill_student"])
def test_a_consumer_learns_from_streamed_features(
    mode: str, stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_streaming_run(tmp_path, stages.inputs)
    store = captured(tmp_path, mode)
    monkeypatch.setattr(disaggregated, "_mooncake_store", lambda *_, **__: store)
    teacher = stages.folder / "out/teacher"
    start = (f"model.draft_checkpoint_path={teacher}", "output_dir=out")
    outcome = train(tmp_path, mode, "--role", "consumer", *start)
    assert outcome.status == 0, outcome.err
    assert outcome.metrics.keys() == {1, 2}
    assert all(metrics["loss"] > 0 for metrics in outcome.metrics.values())
    assert not same_weights(
        draft_of(tmp_path / "out" / f"{mode}-latest"), draft_of(teacher / "dstill_teacher-latest")
    )
    assert StreamingRefChannel(str(tmp_path / "control" / "refs.jsonl")).consumer_stopped()
    assert torch.distributed.is_initialized() is False
