"""Runs of the training command on the tiny inputs, in this process or in others."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml

from specforge_dstill.train import main
from specforge_dstill.trajectory_store import TrajectoryStore

ROOT = Path(__file__).parents[2]
ERROR = "specforge-dstill: error: "
# A student whose teacher rolls out in its steps.
ONLINE = ("dstill.trajectories=online", "output_dir=out/online")
# The `deployment:` of a run whose features capture servers stream; none is started by planning.
STREAMING: dict[str, Any] = {
    "mode": "disaggregated",
    "disaggregated": {
        "control_dir": "control",
        "backend": "mooncake",
        "server_urls": ["http://127.0.0.1:30000"],
        "mooncake_metadata_server": "http://127.0.0.1:1/metadata",
        "mooncake_master_server_addr": "127.0.0.1:2",
    },
}
_PROCESS_GROUP = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit status and what it printed."""

    status: int
    out: str
    err: str

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """The logged metrics of each step."""
        lines = re.findall(r"^step (\d+): (\{.*\})$", self.out, flags=re.MULTILINE)
        return {int(step): ast.literal_eval(values) for step, values in lines}

    @property
    def error(self) -> str:
        """The one error line of a refused command."""
        assert self.status == 2, self.err
        lines = [line for line in self.err.splitlines() if line.startswith(ERROR)]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix(ERROR)


def write_run(folder: Path, inputs: Path, **changes: Any) -> None:
    """A run file of every stage; inputs are named by absolute paths, outputs lie in ``folder``."""
    document = {
        "model": {
            "target_model_path": str(inputs / "target"),
            "draft_model_config": str(inputs / "draft.json"),
            "torch_dtype": "float32",
        },
        "data": {
            "hidden_states_path": str(inputs / "cache"),
            "max_length": 64,
            "dataloader_num_workers": 0,
        },
        "training": {
            "num_epochs": 2,
            "batch_size": 4,
            "learning_rate": 1e-3,
            "num_anchors": 4,
            "log_interval": 1,
        },
        "dstill": {
            "steps": 3,
            "trajectories": "traj",
            "collect": {"top_k": 8, "shard_size": 4, "anchors_per_sample": 6},
        },
        "modes": {
            "dflash": {"output_dir": "out/dflash"},
            "dstill_teacher": {"output_dir": "out/teacher"},
            "dstill_collect": {"model": {"draft_checkpoint_path": "out/teacher"}},
            "dstill_student": {
                "output_dir": "out/student",
                "model": {"draft_checkpoint_path": "out/teacher"},
            },
        },
    }
    for key, value in changes.items():
        section, name = key.split("__")
        document[section][name] = value
    (folder / "dstill.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")


def train(folder: Path, mode: str, *words: str) -> Outcome:
    """Run the command in this process, as one rank, and leave the process as it was."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        _own_environment(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = main(["--mode", mode, *words])
    return Outcome(status, out.getvalue(), err.getvalue())


def start(folder: Path, mode: str, *words: str) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    with _own_environment():
        return subprocess.Popen(
            [sys.executable, "-m", "specforge_dstill.train", "--mode", mode, *words],
            cwd=folder,
            env=_child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


def start_on_two_ranks(folder: Path, mode: str, *words: str) -> subprocess.Popen[str]:
    """Start the command under torchrun; see :func:`kill`."""
    with _own_environment():
        return subprocess.Popen(
            [*_torchrun(2), "-m", "specforge_dstill.train", "--mode", mode, *words],
            cwd=folder,
            env=_child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


def kill(job: subprocess.Popen[str]) -> None:
    """SIGKILL to a command and to every process that it started, at once."""
    processes = [*psutil.Process(job.pid).children(recursive=True), psutil.Process(job.pid)]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes[:-1], timeout=10)
    job.wait(timeout=10)


def commands_on_two_ranks(folder: Path, commands: dict[str, list[str]]) -> Outcome:
    """Several commands one after the other in one torchrun; ``begin NAME`` and ``end NAME`` lines
    around what each prints, and their statuses in ``rank0.json`` and ``rank1.json``."""
    script = folder / "commands.py"
    # Each process group meets on a port of its own: torchrun's store keeps the last one's keys.
    numbered = [
        (name, words, port)
        for (name, words), port in zip(commands.items(), free_ports(len(commands)), strict=True)
    ]
    script.write_text(
        "import json, os, sys\n"
        "from specforge_dstill.train import main\n"
        "if os.environ['RANK'] != '0':\n"
        "    sys.stdout = open(os.devnull, 'w')\n"
        "os.environ['TORCHELASTIC_USE_AGENT_STORE'] = 'False'\n"
        "statuses = {}\n"
        f"for name, words, port in {numbered!r}:\n"
        "    os.environ['MASTER_PORT'] = str(port)\n"
        "    print(f'begin {name}', flush=True)\n"
        "    statuses[name] = main(words)\n"
        "    print(f'end {name}', flush=True)\n"
        "json.dump(statuses, open('rank' + os.environ['RANK'] + '.json', 'w'))\n"
    )
    return on_torchrun(script, ranks=2)


def on_torchrun(script: Path, *, ranks: int) -> Outcome:
    """Run a script in its own folder, on several ranks."""
    with _own_environment():
        done = subprocess.run(
            [*_torchrun(ranks), str(script)],
            cwd=script.parent,
            env=_child_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    return Outcome(done.returncode, done.stdout, done.stderr)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def draft_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The draft's weights in a checkpoint folder."""
    state = torch.load(checkpoint / "training_state.pt", weights_only=True)
    weights: dict[str, torch.Tensor] = state["draft_state_dict"]
    return weights


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def store_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of a trajectory store."""
    TrajectoryStore.open(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _torchrun(ranks: int) -> list[str]:
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks))
    return [sys.executable, *words]


def _child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def _own_environment() -> Iterator[None]:
    before = dict(os.environ)
    for name in (*_PROCESS_GROUP, "MASTER_PORT"):
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
