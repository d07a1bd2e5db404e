"""``specforge-dstill export``: a trained drafter as a folder that servers load."""

from __future__ import annotations

import argparse
from pathlib import Path

from specforge_dstill.arguments import add_run_file
from specforge_dstill.data.sample_check import dtype_name
from specforge_dstill.export.draft_facts import DraftFacts
from specforge_dstill.export.exporter import Exportable, export
from specforge_dstill.export.launch_commands import launches
from specforge_dstill.export.layouts import LAYOUTS, NATIVE
from specforge_dstill.export.target_facts import TargetFacts
from specforge_dstill.runfile import load_run

EXAMPLE = """example:
  specforge-dstill export --checkpoint output/dstill_student-latest --output-dir student
  specforge-dstill export --to speculators --checkpoint output/dstill_student-latest \\
      --output-dir student-speculators
native: SGLang, vLLM and z-lab's dflash. speculators: vLLM. hf: SpecForge, for further training.
The checkpoint's draft config and target are the run file's; a Hugging Face folder has its own
draft config. Nothing is written over. Where it came from goes into OUTPUT_DIR/dstill.json.
Servers draft in one pass: export the student (or a plain DFlash drafter). A teacher can be
exported, too, but no engine gives it its K passes.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    add_run_file(parser)
    add = parser.add_argument
    add(
        "--checkpoint",
        required=True,
        metavar="FOLDER",
        help="a run's folder, a checkpoint or a Hugging Face folder",
    )
    add("--to", choices=LAYOUTS, default=NATIVE, help=f"the layout (default: {NATIVE})")
    add("--output-dir", required=True, type=Path, metavar="FOLDER", help="must not be there yet")
    add("--target", metavar="TARGET", help="the target's folder or name (default: the run file's)")


def run(args: argparse.Namespace) -> int:
    """Export, and print how to serve it."""
    run_file = load_run(args.config, args.overrides, "dflash")
    draft = Exportable.of(run_file, args.checkpoint, target=args.target)
    export(draft, args.to, args.output_dir, run=run_file, checkpoint=args.checkpoint)
    count = sum(tensor.numel() for tensor in draft.tensors.values())
    size = f"{count / 1e6:.1f} M parameters, {dtype_name(draft.dtype)}"
    print(f"{args.output_dir}: {args.to} layout, {size}")
    print_launches(draft.facts, layout=args.to, folder=args.output_dir, target=draft.target)
    return 0


def print_launches(facts: DraftFacts, *, layout: str, folder: Path, target: TargetFacts) -> None:
    """The command of each engine under its name, with what to know of it."""
    for launch in launches(facts, layout=layout, folder=str(folder), target=target):
        print(f"\n{launch.engine}:")
        for line in (launch.command, *launch.notes):
            if line is not None:
                print(f"  {line}")
