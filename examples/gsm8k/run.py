"""The paper's comparisons on a small target that two CPU cores can train drafters for to the end.

    P=path/to/prompts                       JSONL, {"turns": ["…"]} a line
    python examples/gsm8k/run.py --target FOLDER \\
        --train-prompts $P/gsm8k-train.jsonl --eval-prompts $P/gsm8k.jsonl

The target of the numbers in examples/results has 2.8 M parameters (Qwen3, 6 layers, hidden 192,
1,024 tokens) and was trained on GSM8K's text; draft.json fits it. For another one give a draft
config of its own: --draft FILE.

The stages, each a command that you could type in runs/gsm8k (their logs are in its logs/):

    regenerate   specforge-dstill regenerate …     3,000 answers at temperature 0.7, and 32 held out
    capture      specforge-dstill capture …        their hidden states
    ablate       specforge-dstill ablate ablations.yaml

The last trains and measures all variants on three seeds: 41,000 steps a seed, at a third of a
second each while both cores are busy, beside collections and evaluations. It can be stopped at any
time; the same command goes on. examples/results says which of it was run.
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

#: Prompts by what their answers are for; as many of the file's first, and of the next.
PARTS = {"cache": 3000, "held-out": 32}
MAX_NEW_TOKENS = 160


def write_prompts(path: Path, work: Path) -> None:
    """Cut a file of prompts into its parts."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if len(lines) < sum(PARTS.values()):
        sys.exit(f"{path} has {len(lines)} prompts; {sum(PARTS.values())} are needed")
    start = 0
    for name, count in PARTS.items():
        part = "".join(lines[start : start + count])
        (work / f"{name}-prompts.jsonl").write_text(part, encoding="utf-8")
        start += count


def stages() -> list[Stage]:
    """From the prompts to the feature caches. Paths are relative to the run's folder."""
    answers = [*DSTILL, "regenerate", "--backend", "transformers", "--target", "target"]
    answers += ["--max-new-tokens", str(MAX_NEW_TOKENS), "--batch-size", "128"]
    found = []
    for name in PARTS:
        files = (f"{name}-prompts.jsonl", f"{name}-answers.jsonl")
        regenerate = [*answers, "--prompts", files[0], "--output", files[1]]
        capture = [*DSTILL, "capture", "--conversations", files[1], "--output", name]
        found += [
            Stage(f"regenerate-{name}", {f"regenerate-{name}": regenerate}),
            Stage(f"capture-{name}", {f"capture-{name}": capture}),
        ]
    return found


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
    write_prompts(args.train_prompts, work)
    run_stages(stages(), work, threads=1)
    return subprocess.call([*DSTILL, "ablate", "ablations.yaml"], cwd=work)


if __name__ == "__main__":
    sys.exit(main())
