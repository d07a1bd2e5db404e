"""`specforge-dstill init`: a commented run file to start from."""

from __future__ import annotations

import argparse
import json
from importlib.resources import files
from pathlib import Path

from specforge_dstill.console import DONE
from specforge_dstill.errors import UserError
from specforge_dstill.runfile import DEFAULT_PATH

PAPER_STEPS = 8
# Paths that cannot be mistaken for a hub's names: a run that still has them says what is missing.
_TARGET, _DRAFT_CONFIG, _CACHE = "./path/to/target", "./path/to/draft.json", "cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=_TARGET, help="the target model: a folder or a hub id")
    parser.add_argument("--draft-config", default=_DRAFT_CONFIG, help="the drafter's config, JSON")
    parser.add_argument("--cache", default=_CACHE, help="the feature cache that capture writes")
    parser.add_argument(
        "--output", default=DEFAULT_PATH, help=f"the file to write (default: {DEFAULT_PATH})"
    )


def run(args: argparse.Namespace) -> int:
    steps = _steps(args)
    text = template(
        target=args.target, draft_config=args.draft_config, cache=args.cache, steps=steps
    )
    path = Path(args.output)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists already; name another file with --output") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    given = {
        "model.target_model_path": args.target != _TARGET,
        "model.draft_model_config": args.draft_config != _DRAFT_CONFIG,
    }
    missing = " and ".join(key for key, is_given in given.items() if not is_given)
    notes = [f"set {missing} in it"] if missing else []
    if given["model.draft_model_config"] and args.draft_config.endswith(".json"):
        absent = not Path(args.draft_config).expanduser().exists()
        notes += [f"there is no file {args.draft_config} yet"] if absent else []
    print("; ".join([f"wrote {path}", *notes]))
    return DONE


def _steps(args: argparse.Namespace) -> int:
    """The paper's number of passes, or as many as the draft config's blocks allow.

    Raises:
        UserError: the draft config is a file here that no drafter can have, or none of a target
            that is here.
    """
    from specforge_dstill.data.draft_file import DraftSource, draft_path

    path = draft_path(args.draft_config)
    if path is None:
        return PAPER_STEPS
    source, target = DraftSource(path), None
    if Path(args.target).is_dir():
        from specforge_dstill.data.targets import load_config

        target = load_config(args.target)
    source.check(target)
    return min(PAPER_STEPS, int(source.read()["block_size"]) - 1)


def template(*, target: str, draft_config: str, cache: str, steps: int = PAPER_STEPS) -> str:
    """The run file's text with these paths and number of passes in it."""
    text = files("specforge_dstill").joinpath("init_template.yaml").read_text(encoding="utf-8")
    values = {
        "@TARGET@": target,
        "@DRAFT_CONFIG@": draft_config,
        "@CACHE@": cache,
        "@STEPS@": steps,
    }
    for name, value in values.items():
        # JSON strings are YAML strings.
        text = text.replace(name, json.dumps(value, ensure_ascii=False))
    return text
