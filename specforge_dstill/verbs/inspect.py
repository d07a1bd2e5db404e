"""``specforge-dstill inspect``: what is in a feature cache or a trajectory store."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specforge_dstill.arguments import natural, positive
from specforge_dstill.data.cache_folder import require_cache
from specforge_dstill.data.manifest import MANIFEST
from specforge_dstill.data.markers import IDENTITY
from specforge_dstill.errors import UserError
from specforge_dstill.trajectory_store.identity import IDENTITY_FILE
from specforge_dstill.verbs.inspect_cache import inspect_cache
from specforge_dstill.verbs.inspect_store import inspect_store
from specforge_dstill.verbs.inspect_text import figure_path
from specforge_dstill.verbs.references import Sources

EXAMPLE = """example:
  specforge-dstill inspect --config dstill.yaml trajectories
  specforge-dstill inspect --cache cache --tokenizer Qwen/Qwen3-8B --png block.png \\
      --sample data/00000/00000017.ckpt --block 3 trajectories
  specforge-dstill inspect cache
A picture has a row a pass: tokens as they commit, with the pass's confidence in them, and below
them the reference. Of masked positions it shows what the store recorded: a dot with dstill.collect.
record: commit, what the pass believed, in brackets, with record: full.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("path", metavar="PATH", help="a feature cache's folder, a trajectory store's, or its URL")
    add(
        "--config",
        metavar="FILE",
        help="the run file, which names cache and target (default: dstill.yaml, if it is there)",
    )
    add("--cache", metavar="FOLDER", help="the cache that the store was collected from")
    add("--tokenizer", metavar="TARGET", help="whose tokenizer shows tokens as text")
    add("--limit", type=positive, metavar="N", help="look at the first N samples only")
    add("--sample", metavar="ID", help="one block of this sample as a picture")
    add(
        "--block",
        type=natural,
        metavar="J",
        help="which block, from 0 (default: the first with something to see)",
    )
    add("--png", type=Path, metavar="FILE", help="save the picture as a figure (or .svg, .pdf)")
    add("--json", action="store_true", help="statistics, or the block, as JSON")


def run(args: argparse.Namespace) -> int:
    """Print what is in PATH."""
    png = None if args.png is None else figure_path(args.png)
    if is_store(args.path):
        sources = Sources.of(config=args.config, cache=args.cache, tokenizer=args.tokenizer)
        inspect_store(
            args.path,
            sources,
            limit=args.limit,
            sample=args.sample,
            block=args.block,
            png=png,
            as_json=args.json,
        )
        return 0
    for option in ("sample", "block", "png"):
        if getattr(args, option) is not None:
            raise UserError(
                f"--{option} is for a trajectory store; {args.path} is not one (it has no "
                f"{IDENTITY_FILE})"
            )
    require_cache(Path(args.path))
    inspect_cache(Path(args.path), limit=args.limit, as_json=args.json)
    return 0


def is_store(path: str) -> bool:
    """Whether a path is a trajectory store's rather than a feature cache's, told by its files.

    Raises:
        UserError: there is nothing there, or a file.
    """
    if "://" in path:
        return True
    folder = Path(path)
    if not folder.exists():
        raise UserError(f"{path}: no such file or folder; name a cache or a trajectory store")
    if folder.is_file():
        raise UserError(
            f"{path}: is a file, not a cache or a store; name the folder that capture or --mode "
            "dstill_collect wrote"
        )
    if (folder / IDENTITY_FILE).is_file() or (folder / IDENTITY).is_file():
        return (folder / IDENTITY_FILE).is_file()
    return _has_plan(folder / MANIFEST)


def _has_plan(manifest: Path) -> bool:
    """A store that has lost its identity file still has its plan in the manifest."""
    try:
        found = json.loads(manifest.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "plan" in found
