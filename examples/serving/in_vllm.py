"""vLLM's server with a drafter, asked by an OpenAI client; acceptance by the server's counters."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from answers import Answers, as_tokens
from openai import OpenAI

from specforge_dstill.servers.vllm import read_metrics

START_S, SETTLE_S = 600.0, 0.5
DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
#: A small cache, no reports home, no downloads, and the plugin of ours alone.
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_PLUGINS": "cpu_dflash",
}


def ask_vllm(
    url: str, messages: Sequence[str], *, max_new_tokens: int, name: str = "vllm"
) -> Answers:
    """Ask a server each message in turn, at temperature 0."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    before = _metrics(url)
    tokens = []
    for message in messages:
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": message}],
            temperature=0.0,
            max_tokens=max_new_tokens,
            extra_body={"return_token_ids": True},
        )
        tokens.append(answer.choices[0].model_dump()["token_ids"])
    time.sleep(SETTLE_S)  # it counts an answer's last round a moment after the answer
    after = _metrics(url)
    rounds, accepted = (int(after[key] - before[key]) for key in (DRAFTS, ACCEPTED))
    return Answers(name, as_tokens(tokens), rounds, accepted)


def _metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        return read_metrics(reply.read().decode())


@contextmanager
def vllm_server(
    python: Path, target: Path, drafter: Path, *, drafted: int, log: Path
) -> Iterator[str]:
    """Serve a target with a drafter that drafts so many tokens; yields the server's URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    speculative = {"method": "dflash", "model": str(drafter), "num_speculative_tokens": drafted}
    command = [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(target)),
        *("--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port)),
        *("--speculative-config", json.dumps(speculative)),
    ]
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **SETTINGS},
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(server, url, log)
        yield url
    finally:
        # It starts processes of its own.
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise SystemExit(f"vLLM ended with {server.returncode}; see {log}")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise SystemExit(f"vLLM did not start within {START_S:.0f} s; see {log}")
