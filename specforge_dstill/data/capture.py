"""``specforge-dstill capture``: the target's hidden states for a file of conversations."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from specforge_dstill.arguments import add_placement, add_run_file, json_object, positive
from specforge_dstill.data import chat, targets
from specforge_dstill.data.capture_core import Share, capture_samples
from specforge_dstill.data.capture_input import FP8, computed_dtype, read_input
from specforge_dstill.data.capture_plan import CapturePlan
from specforge_dstill.data.capture_sglang import load_sglang
from specforge_dstill.data.capture_shard import Extract
from specforge_dstill.data.capture_transformers import Features, TransformersExtractor
from specforge_dstill.data.conversations import read_conversations
from specforge_dstill.data.progress import Progress
from specforge_dstill.data.targets import DTYPES
from specforge_dstill.errors import UserError
from specforge_dstill.runfile import load_run
from specforge_dstill.trajectory_store.sharding import shard_samples

EXAMPLE = """example:
  specforge-dstill capture --config dstill.yaml --conversations answers.jsonl
  torchrun --nproc_per_node 8 -m specforge_dstill capture --conversations answers.jsonl
Run the same command again after an interruption: it captures what is missing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    add_run_file(parser)
    add = parser.add_argument
    add(
        "--mode",
        default="dflash",
        help="the mode that will read the cache; what a DSpark draft config needs besides is "
        "captured by itself (default: dflash)",
    )
    add(
        "--conversations",
        required=True,
        metavar="FILE",
        help="what regenerate wrote, or your own JSONL of answered conversations: a list of role "
        'and content (or from and value) under "conversations" or "messages"; "system" and "tools" '
        "may stand beside it",
    )
    add("--output", type=Path, metavar="FOLDER", help="default: data.hidden_states_path")
    add("--limit", type=positive, metavar="N", help="capture the first N conversations only")
    add(
        "--backend",
        choices=("transformers", "sglang"),
        default="transformers",
        help="what runs the target (default: transformers)",
    )
    add(
        "--chat-template",
        metavar="NAME",
        help="a SpecForge template, or 'tokenizer' for the target's own (default: "
        "data.chat_template if the run file sets it, else the target's own)",
    )
    add(
        "--template-kwargs",
        type=json_object,
        metavar="JSON",
        help="for the chat template (default: those regenerate was given)",
    )
    add(
        "--dtype",
        choices=(*DTYPES, FP8),
        help="of the stored states (default: model.torch_dtype); fp8 is float8 with a scale a "
        "token and layer: half of bfloat16, and read by our modes only",
    )
    add("--batch-tokens", type=positive, default=8192, help="tokens a batch (default: 8192)")
    add(
        "--shard-size",
        type=positive,
        default=256,
        help="conversations a rank captures between two marks of progress (default: 256)",
    )
    transformers = parser.add_argument_group("--backend transformers")
    transformers.add_argument(
        "--compute-dtype",
        choices=DTYPES,
        help="default: float32 on a CPU, else that of the stored states",
    )
    add_placement(transformers, default="this rank's GPU when there is one")
    engine = parser.add_argument_group("--backend sglang").add_argument
    engine(
        "--tp-size",
        type=positive,
        default=1,
        help="GPUs that share one copy of the target (default: 1)",
    )
    engine(
        "--engine-options",
        type=json_object,
        default={},
        metavar="JSON",
        help="""for SGLang's ServerArgs, such as '{"mem_fraction_static": 0.8}'""",
    )


def run(args: argparse.Namespace) -> int:
    """Capture this rank's share; 0 when it is written."""
    targets.check_device(args.device)
    plan = CapturePlan.of(load_run(args.config, args.overrides, args.mode))
    conversations = read_conversations(args.conversations, limit=args.limit)
    samples, manifest = read_input(args, plan, conversations)
    samples.check_some()
    share = _share(args)
    folder = args.output or Path(plan.config.data.hidden_states_path)
    mine = _count(len(samples), args.shard_size, share)
    # SGLang's ranks start together; a target in transformers loads when the first batch comes,
    # so that a finished cache needs none.
    extract = _sglang(args, plan) if args.backend == "sglang" else _LazyTarget(args, plan)
    with Progress("capture", total=mine, enabled=share.rank == 0 and share.writes) as progress:
        done = capture_samples(
            samples,
            extract,
            layout=plan.layout,
            folder=folder,
            manifest=manifest,
            batch_tokens=args.batch_tokens,
            share=share,
            update=progress.advance,
        )
    if done is not None:
        left_out = "".join(f"; {count} left out: {why}" for why, count in done.dropped.items())
        print(
            f"{folder}: complete, {done.samples} samples, {done.width} wide, {done.dtype}{left_out}"
        )
    return 0


def _share(args: argparse.Namespace) -> Share:
    """This process's share under torchrun; with tensor parallelism the first of a group writes."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    group = args.tp_size if args.backend == "sglang" else 1
    if world % group:
        raise UserError(f"--tp-size {group} does not divide the {world} ranks of this run")
    return Share(rank // group, world // group, writes=rank % group == 0)


def _count(samples: int, size: int, share: Share) -> int:
    mine = share.shards(samples, size)
    return sum(len(shard_samples(range(samples), shard, size)) for shard in mine)


class _LazyTarget:
    """Loads the target through transformers when the first batch comes."""

    def __init__(self, args: argparse.Namespace, plan: CapturePlan) -> None:
        self._args, self._plan = args, plan
        self._extract: TransformersExtractor | None = None

    def __call__(self, samples: Sequence[chat.TokenSample]) -> list[Features]:
        if self._extract is None:
            self._extract = self._load()
        return self._extract(samples)

    def _load(self) -> TransformersExtractor:
        args, plan = self._args, self._plan
        device = args.device or _rank_device()
        computed = computed_dtype(args, plan)
        target = targets.load_model(
            plan.config.model.target_model_path,
            dtype=args.compute_dtype or ("float32" if device == "cpu" else computed),
            device=device,
            attn_implementation=args.attn_implementation,
            trust_remote_code=plan.config.model.trust_remote_code,
        )
        return TransformersExtractor(target, plan.layers, with_last=plan.with_last)


def _sglang(args: argparse.Namespace, plan: CapturePlan) -> Extract:
    return load_sglang(
        plan.config.model.target_model_path,
        plan.layers,
        capture_method=plan.layout.capture_method,
        dtype=getattr(torch, computed_dtype(args, plan)),
        tp_size=args.tp_size,
        trust_remote_code=plan.config.model.trust_remote_code,
        with_last=plan.with_last,
        engine_options=args.engine_options,
    )


def _rank_device() -> str:
    device = targets.default_device()
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device
