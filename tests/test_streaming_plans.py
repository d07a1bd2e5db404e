"""What `--plan` prints for features that a capture server streams: dflash's plan, in our words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from specforge_dstill.train import main, parse
from tests import tiny

EXTERNAL = {
    "server_urls": ["http://10.0.0.1:30000", "http://10.0.0.2:30000"],
    "mooncake_metadata_server": "http://10.0.0.1:35880/metadata",
    "mooncake_master_server_addr": "10.0.0.1:35551",
}
MANAGED = {
    "managed_local": {
        "trainer_cuda_visible_devices": ["4", "5", "6", "7"],
        "capture_servers": [{"port": 30000, "cuda_visible_devices": ["0"]}],
    }
}
STREAMING_MODES = ["dstill_teacher", "dstill_student"]
Capsys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def one_folder(tmp_path: Path, tiny_inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the run file `dstill.yaml`, outside any torchrun."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    write(tiny_inputs, EXTERNAL)


def write(inputs: Path, servers: dict[str, Any]) -> None:
    document = {
        "model": {
            "target_model_path": str(inputs / "target"),
            "draft_model_config": str(inputs / "draft.json"),
            "draft_checkpoint_path": "teacher",
        },
        "data": {"prompts_path": "prompts.jsonl", "max_length": 64},
        "deployment": {
            "mode": "disaggregated",
            "trainer": {"nproc_per_node": 4},
            "disaggregated": {"control_dir": "control", "backend": "mooncake", **servers},
        },
        "dstill": {"trajectories": "online", "steps": 3},
    }
    Path("dstill.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")


def plan_of(capsys: Capsys, mode: str, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["--mode", mode, "--plan", *words]) == 0, capsys.readouterr().err
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def in_words_of(mode: str, plan: dict[str, Any]) -> dict[str, Any]:
    """The plan of dflash with the mode's name in its place."""
    renamed: dict[str, Any] = json.loads(json.dumps(plan).replace('"dflash"', f'"{mode}"'))
    for service in renamed.get("services", []):
        argv = service["command"]["argv"]
        service["command"]["argv"] = ["dflash" if word == mode else word for word in argv]
    return renamed


@pytest.mark.parametrize("mode", STREAMING_MODES)
def test_a_producer_and_the_ranks_of_the_consumer(capsys: Capsys, mode: str) -> None:
    words = ["dstill.student.alpha=0.4", "run_id=dflash"]
    plan = plan_of(capsys, mode, *words)
    assert plan["kind"] == "supervisor"
    producer, consumer = plan["commands"]
    assert [producer["label"], consumer["label"]] == ["producer", "consumer"]
    argv = consumer["argv"]
    assert argv[argv.index("--nproc_per_node") + 1] == "4"
    for command in (producer, consumer):
        own = command["argv"][command["argv"].index("specforge_dstill.train") + 1 :]
        args = parse(own)
        assert (args.mode, args.role, args.overrides) == (mode, command["label"], words)


@pytest.mark.parametrize("servers", [EXTERNAL, MANAGED], ids=["external", "managed"])
@pytest.mark.parametrize("mode", STREAMING_MODES)
def test_everything_else_is_as_for_dflash(
    capsys: Capsys, mode: str, servers: dict[str, Any], tiny_inputs: Path
) -> None:
    """Servers, the layers that they capture, ports, environments."""
    write(tiny_inputs, servers)
    theirs = plan_of(capsys, "dflash")
    assert plan_of(capsys, mode) == in_words_of(mode, theirs)
    if servers is MANAGED:
        argv = theirs["services"][-1]["command"]["argv"]
        layers = argv[argv.index("--spec-capture-aux-layer-ids") + 1 :][: len(tiny.LAYERS)]
        assert layers == [str(layer) for layer in tiny.LAYERS]


@pytest.mark.parametrize("mode", STREAMING_MODES)
def test_each_node_of_several_is_started_by_its_own_command(capsys: Capsys, mode: str) -> None:
    words = [
        *("deployment.trainer.nnodes=4", "deployment.trainer.master_addr=10.0.1.1"),
        "deployment.disaggregated.consumer_state_dir=/local",
    ]
    plan = plan_of(capsys, mode, "--role", "consumer", "--node-rank", "2", *words)
    (command,) = plan["commands"]
    argv = command["argv"]
    assert argv[argv.index("--nnodes") + 1] == "4"
    assert argv[argv.index("--node_rank") + 1] == "2"
    assert plan_of(capsys, mode, "--role", "producer", *words)["kind"] == "worker"


@pytest.mark.parametrize("mode", ["dstill_collect", "dstill_student"])
def test_a_store_needs_a_cache(capsys: Capsys, mode: str) -> None:
    assert main(["--mode", mode, "--plan", "dstill.trajectories=traj"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "data.hidden_states_path" in line
    assert "dstill.trajectories: online" in line
