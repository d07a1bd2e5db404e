"""``specforge-dstill check-export``: whether an exported drafter is served as it was trained."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch

from specforge_dstill.arguments import add_run_file
from specforge_dstill.errors import UserError
from specforge_dstill.export.check import Finding, Folder, check_config, check_weights
from specforge_dstill.export.exporter import Exportable
from specforge_dstill.export.recorded_blocks import compare, recorded_blocks
from specforge_dstill.export.target_facts import TargetFacts
from specforge_dstill.modes.assembly import beside_target
from specforge_dstill.runfile import DEFAULT_PATH, RunFile, load_run
from specforge_dstill.verbs.export import print_launches

EXAMPLE = """example:
  specforge-dstill check-export --target Qwen/Qwen3-8B student
  specforge-dstill check-export --config dstill.yaml --cache cache student
Looks at every key that an engine reads, at the names, shapes and dtype of the tensors, and
compares both, and the logits on recorded blocks, with the checkpoint that the folder was made
from. Exit status: 0 when all is well, 1 when there is a fault.
"""
FAULT = 1
#: Of the largest logit: the same weights may be added up in another order.
TOLERANCE = 1e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("folder", type=Path, metavar="DIR", help="an exported drafter")
    add_run_file(parser)
    add = parser.add_argument
    add("--target", metavar="TARGET", help="the target's folder or name (default: the run file's)")
    add(
        "--checkpoint",
        metavar="FOLDER",
        help="the training checkpoint (default: the one that DIR/dstill.json names)",
    )
    add("--cache", metavar="FOLDER", help="a feature cache (default: the run file's)")


def run(args: argparse.Namespace) -> int:
    """Print a line for each finding; 1 when one is a fault."""
    folder = Folder.read(args.folder)
    run_file = _run_file(args)
    target = TargetFacts.of(_target(args, run_file, folder))
    training = _training(args, run_file, folder, target)
    trained = training if isinstance(training, Exportable) else None
    findings = [*check_config(folder, trained, target), *check_weights(folder, trained)]
    if isinstance(training, str):
        findings.append(Finding("training", f"not compared: {training}"))
    elif run_file is not None and not any(finding.is_fault for finding in findings):
        findings.append(_logits(run_file, folder, training, args.cache))
    for finding in findings:
        print(f"{finding.part:<9} {'FAULT: ' if finding.is_fault else ''}{finding.told}")
    if any(finding.is_fault for finding in findings):
        return FAULT
    print_launches(folder.facts, layout=folder.layout, folder=args.folder, target=target)
    return 0


def _run_file(args: argparse.Namespace) -> RunFile | None:
    """The run file of the training; None when none is named and none lies here."""
    if args.config is None and not Path(DEFAULT_PATH).is_file():
        if args.overrides:
            raise UserError(f"{args.overrides[0]}: overrides a run file; name it with --config")
        return None
    return load_run(args.config, args.overrides, "dflash")


def _target(args: argparse.Namespace, run_file: RunFile | None, folder: Folder) -> str:
    named = args.target or (run_file and run_file.config.model.target_model_path)
    named = named or (folder.provenance.get("target") or {}).get("name")
    if not named:
        raise UserError(f"{folder.path}: does not tell its target; name it with --target")
    return str(named)


def _training(
    args: argparse.Namespace, run_file: RunFile | None, folder: Folder, target: TargetFacts
) -> Exportable | str:
    """The drafter as it was trained; or why it is not to be had."""
    if run_file is None:
        return "no run file here; name it with --config"
    checkpoint = args.checkpoint or (folder.provenance.get("origin") or {}).get("resolved")
    if not checkpoint:
        return "the folder does not tell its checkpoint; name it with --checkpoint"
    if args.checkpoint is None and not Path(checkpoint).is_dir():
        return f"its checkpoint {checkpoint} is gone; name another with --checkpoint"
    return Exportable.of(run_file, checkpoint, target=target.name)


def _logits(run_file: RunFile, folder: Folder, training: Exportable, named: str | None) -> Finding:
    """Both drafters, in SpecForge's class, on the same recorded blocks.

    Args:
        named: the cache of the command line. The run file's may lie elsewhere.
    """
    cache = named or run_file.config.data.hidden_states_path
    if not cache:
        return Finding("logits", "not compared: no feature cache; name one with --cache")
    if named is None and not Path(cache).is_dir():
        told = f"not compared: {cache}: no such feature cache; name one with --cache"
        return Finding("logits", told)
    recorded = recorded_blocks(
        cache,
        width=len(training.facts.layer_ids) * training.target.shape.hidden_size,
        max_length=run_file.config.data.max_length,
    )
    model = run_file.config.model.model_copy(update={"target_model_path": training.target.name})
    # SpecForge tells on stdout what it loads; that is for the findings.
    with redirect_stdout(sys.stderr):
        drafters = [
            beside_target(
                one.model().float(),
                model,
                mask_token_id=one.facts.mask_token_id,
                device=torch.device("cpu"),
            )
            for one in (folder.as_exportable(training.target), training)
        ]
    found = compare(drafters[0], drafters[1], recorded)
    told = (
        f"{found.blocks} blocks of {Path(cache)}: {found.same} of {found.tokens} predictions the "
        f"same, largest difference {found.difference:.2g} of {found.largest:.2g}"
    )
    return Finding("logits", told, found.difference > TOLERANCE * found.largest)
