"""DSTILL from nothing to its table, on two CPU cores in under a quarter of an hour.

    make demo                              the same as
    .venv/bin/python examples/demo/run.py

The stages, each a command that you could type in runs/demo (their logs are in runs/demo/logs):

    target       python examples/demo/target.py         a small language model, prompts, draft.json
    regenerate   specforge-dstill regenerate …          its answers to the training prompts
    capture      specforge-dstill capture …             its hidden states for those answers
    baseline ‖ teacher                                  side by side, one core each:
                 torchrun -m specforge.train --mode dflash
                 torchrun -m specforge.train --mode dstill_teacher
    collect      torchrun --nproc_per_node 2 -m specforge.train --mode dstill_collect
    student ‖ baseline trained on                       side by side, the same number of steps:
                 torchrun -m specforge.train --mode dstill_student
                 torchrun -m specforge.train --mode dflash model.draft_checkpoint_path=…
    evaluate     specforge-dstill evaluate --replay …   the paper's Table 4 in small
    report       specforge-dstill report results …      the same as a page, with curves

A stage that was finished is not run again; remove runs/demo to start afresh.

    .venv/bin/python examples/demo/run.py --ablations     in hours

trains and measures everything on three seeds instead, with the paper's variants of the student:
target, regenerate, capture, then specforge-dstill ablate ablations.yaml. In the same way

    .venv/bin/python examples/demo/run.py --dspark

sets DSpark against DSpark and distillation, by dspark.yaml and dstill-dspark.yaml, with a feature
cache of its own.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from stages import DSTILL, PYTHON, Stage, run_stages, train  # noqa: E402

RUN_FILE = "dstill.yaml"
EVALUATED_PROMPTS = 200
MAX_NEW_TOKENS = 80


def data_stages(run_file: str) -> list[Stage]:
    """From nothing to a run file's feature cache. Paths are relative to the demo's folder."""
    capture = [*DSTILL, "capture", "--config", run_file, "--conversations", "answers.jsonl"]
    name = "capture" if run_file == RUN_FILE else "capture-dspark"
    answers = [*DSTILL, "regenerate", "--backend", "transformers", "--target", "target"]
    return [
        Stage("target", {"target": [PYTHON, str(HERE / "target.py"), "--output", "."]}),
        Stage(
            "regenerate",
            {
                "regenerate": [
                    *answers,
                    *("--prompts", "train-prompts.jsonl", "--output", "answers.jsonl"),
                    *("--batch-size", "64", "--max-new-tokens", str(MAX_NEW_TOKENS)),
                ]
            },
        ),
        Stage(name, {name: capture}),
    ]


def training_stages() -> list[Stage]:
    """From the feature cache to the table."""
    trained_on = [
        "run_id=dflash-more",
        "output_dir=output/dflash-more",
        "model.draft_checkpoint_path=output/dflash",
        "training.num_epochs=4",
        "training.learning_rate=5e-4",
    ]
    drafters = ["dflash=output/dflash", "dflash-more=output/dflash-more:1"]
    drafters += ["teacher=output/teacher", "student=output/student:1"]
    logs = [f"{name}=logs/{name}.log" for name in ("dflash", "dflash-more", "teacher", "student")]
    curves = [word for log in logs for word in ("--training", log)]
    return [
        Stage(
            "baseline-and-teacher",
            {"dflash": train("dflash"), "teacher": train("dstill_teacher")},
        ),
        Stage("collect", {"collect": train("dstill_collect", ranks=2)}),
        Stage(
            "student-and-baseline-more",
            {"student": train("dstill_student"), "dflash-more": train("dflash", *trained_on)},
        ),
        Stage(
            "evaluate",
            {
                "evaluate": [
                    *(*DSTILL, "evaluate", "--replay", "--prompts", "stories=eval-prompts.jsonl"),
                    *("--limit", str(EVALUATED_PROMPTS), "--max-new-tokens", str(MAX_NEW_TOKENS)),
                    *[word for drafter in drafters for word in ("--drafter", drafter)],
                    *("--output", "results", "--batch-size", "64"),
                ]
            },
        ),
        Stage("report", {"report": [*DSTILL, "report", "results", *curves]}),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/demo"), help="the demo's folder")
    parser.add_argument("--ablations", action="store_true", help="three seeds, all variants")
    parser.add_argument("--dspark", action="store_true", help="three seeds of DSpark drafters")
    args = parser.parse_args()
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    for path in HERE.glob("*.yaml"):
        shutil.copy(path, work)
    start = time.monotonic()
    run_stages(data_stages("dstill-dspark.yaml" if args.dspark else RUN_FILE), work, threads=1)
    if args.ablations or args.dspark:
        grid = "dspark.yaml" if args.dspark else "ablations.yaml"
        raise SystemExit(subprocess.call([*DSTILL, "ablate", grid], cwd=work))
    run_stages(training_stages(), work, threads=1)
    print(f"{'all':<28} {time.monotonic() - start:.0f} s\n")
    print((work / "results" / "table.txt").read_text())
    print(f"page: {args.work / 'report' / 'report.html'}")


if __name__ == "__main__":
    main()
