"""The paper's comparisons on a small target that two CPU cores can train drafters for to the end.

    P=path/to/prompts                       JSONL, {"turns": ["…"]} a line
    python examples/gsm8k/run.py --target FOLDER \\
        --train-prompts $P/gsm8k-train.jsonl --eval-prompts $P/gsm8k.jsonl

The target of the numbers in examples/results has 2.8 M parameters (Qwen3, 6 layers, hidden 192,
1,024 tokens) and was trained on GSM8K's text; draft.json fits it. For another one give a draft
config of its own: --draft FILE.

The stages, each a command that you could type in runs/gsm8k (their logs are in its logs/):

    regenerate   specforge-dstill regenerate …     3,000 answers at temperature 0.7
    capture      specforge-dstill capture …        their hidden states
    ablate       specforge-dstill ablate ablations.yaml

The last trains and measures all variants on three seeds: five to six hours on two cores. It can be
stopped at any time; the same command goes on.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from stages import DSTILL, Stage, run_stages  # noqa: E402

ANSWERS, MAX_NEW_TOKENS = 3000, 160


def stages(target: str, prompts: str) -> list[Stage]:
    """From the prompts to the feature cache. Paths are relative to the run's folder."""
    regenerate = [*DSTILL, "regenerate", "--backend", "transformers", "--target", target]
    regenerate += ["--prompts", prompts, "--limit", str(ANSWERS), "--output", "answers.jsonl"]
    regenerate += ["--max-new-tokens", str(MAX_NEW_TOKENS), "--batch-size", "128"]
    capture = [*DSTILL, "capture", "--conversations", "answers.jsonl"]
    return [
        Stage("regenerate", {"regenerate": regenerate}),
        Stage("capture", {"capture": capture}),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", type=Path, required=True, help="a Hugging Face folder")
    add("--train-prompts", type=Path, required=True, metavar="FILE")
    add("--eval-prompts", type=Path, required=True, metavar="FILE")
    add("--draft", type=Path, default=HERE / "draft.json", metavar="FILE", help="its drafter's")
    add("--work", type=Path, default=Path("runs/gsm8k"), help="the run's folder")
    args = parser.parse_args()
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    for name in ("dstill.yaml", "ablations.yaml"):
        shutil.copy(HERE / name, work)
    shutil.copy(args.draft, work / "draft.json")
    shutil.copy(args.eval_prompts, work / "eval-prompts.jsonl")
    target = work / "target"
    if not target.exists():
        target.symlink_to(args.target.resolve(), target_is_directory=True)
    run_stages(stages("target", str(args.train_prompts.resolve())), work, threads=1)
    return subprocess.call([*DSTILL, "ablate", "ablations.yaml"], cwd=work)


if __name__ == "__main__":
    sys.exit(main())
