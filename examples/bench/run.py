"""Ours and SpecForge's own, in turn, in one process: times, ratios and the floor.

    make bench                                           SmolLM2's shape, on a CPU, 12 minutes
    make bench BENCH="--threads 1 --save"                as kept in examples/results
    make bench BENCH="--shape tiny --repeats 1"          only shows that it runs
    python examples/bench/run.py --shape gpt-oss-120b    on a GPU

A ratio is the median over rounds of the ratio within a round, in which the runs follow each
other. The floor is the matrix products that must be done (floor.py) at the rate of one large
product, measured in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

# SpecForge says so on import; the bench names its attention itself.
warnings.filterwarnings("ignore", message="flash_attn is not found")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from measure import run_rounds  # noqa: E402
from ours import Ours  # noqa: E402
from report import rows_of, table  # noqa: E402
from shapes import DEFAULT_SHAPE, SHAPES  # noqa: E402

from specforge_dstill.arguments import positive  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", choices=sorted(SHAPES), default=DEFAULT_SHAPE, help=f"default: {DEFAULT_SHAPE}"
    )
    parser.add_argument("--repeats", type=positive, default=5, help="counted rounds; default: 5")
    parser.add_argument("--threads", type=positive, help="of torch; default: its own choice")
    parser.add_argument(
        "--save",
        action="store_true",
        help="keep the result in examples/results, not in runs/bench under the current folder",
    )
    args = parser.parse_args(arguments)
    shape = SHAPES[args.shape]
    if shape.device == "cuda" and not torch.cuda.is_available():
        parser.error(f"--shape {shape.name} needs a GPU, and there is none here")
    if args.threads:
        torch.set_num_threads(args.threads)
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(shape, Path(folder))
        times = run_rounds(ours, repeats=args.repeats, show=_progress)
    rows = rows_of(times, shape)
    machine = _machine(before)
    text = table(rows, times, shape, machine)
    print(text)
    written = _write(
        HERE.parent / "results" if args.save else Path("runs/bench"),
        f"bench-{shape.name}",
        text,
        {
            "shape": vars(shape),
            "machine": machine,
            "rows": [vars(row) for row in rows],
            "seconds": times.seconds,
            "values": times.values,
        },
    )
    _progress(f"written to {written}")
    return 0


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _machine(load_before: tuple[float, ...]) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "device": gpu or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load before and after": [load_before[0], os.getloadavg()[0]],
        "torch": torch.__version__,
        "specforge": version("specforge"),
    }


def _write(folder: Path, name: str, text: str, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text + "\n")
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    return folder / f"{name}.md"


if __name__ == "__main__":
    sys.exit(main())
