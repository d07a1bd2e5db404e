"""``specforge-dstill capture``: the target's hidden states for a file of conversations."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from specforge_dstill.arguments import add_placement, add_run_file, json_object, positive
from specforge_dstill.data import chat, targets
from specforge_dstill.data.answers_file import settings_path
from specforge_dstill.data.capture_core import Extract, Share, capture_samples
from specforge_dstill.data.capture_plan import CapturePlan
from specforge_dstill.data.capture_sglang import load_sglang
from specforge_dstill.data.capture_transformers import Features, TransformersExtractor
from specforge_dstill.data.conversations import Conversation, read_conversations
from specforge_dstill.data.manifest import CacheManifest, config_hash
from specforge_dstill.data.progress import Progress
from specforge_dstill.data.settings import read_settings
from specforge_dstill.data.targets import DTYPES
from specforge_dstill.data.versions import library_versions
from specforge_dstill.errors import UserError
from specforge_dstill.runfile import load_run

EXAMPLE = """example:
  specforge-dstill capture --config dstill.yaml --conversations answers.jsonl
  torchrun --nproc_per_node 8 -m specforge_dstill capture --conversations answers.jsonl
Run the same command again after an interruption: it captures what is missing.
"""

#: Conversations that are tried before the target is loaded.
_PROBED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    add_run_file(parser)
    add = parser.add_argument
    add(
        "--mode",
        default="dflash",
        help="whose layers and tensors; our modes read dflash's (default: dflash)",
    )
    add("--conversations", required=True, metavar="FILE", help="what regenerate wrote")
    add("--output", type=Path, metavar="FOLDER", help="default: data.hidden_states_path")
    add("--limit", type=positive, metavar="N", help="capture the first N conversations only")
    add("--backend", choices=("transformers", "sglang"), default="transformers")
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
    add("--dtype", choices=DTYPES, help="of the stored states (default: model.torch_dtype)")
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
    engine("--tp-size", type=positive, default=1, help="GPUs that share one copy of the target")
    engine(
        "--engine-options",
        type=json_object,
        default={},
        metavar="JSON",
        help="""for SGLang's ServerArgs, such as '{"mem_fraction_static": 0.8}'""",
    )


def run(args: argparse.Namespace) -> int:
    """Capture this rank's share; 0 when it is written."""
    plan = CapturePlan.of(load_run(args.config, args.overrides, args.mode))
    conversations = read_conversations(args.conversations, limit=args.limit)
    samples, manifest = _samples(args, plan, conversations)
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
        print(f"{folder}: {done.samples} samples, {done.width} wide, {done.dtype}{left_out}")
    return 0


class TokenizedConversations(Sequence[chat.TokenSample]):
    """Samples that are tokenized as they are asked for, so that memory holds a shard only."""

    def __init__(self, conversations: Sequence[Conversation], encode: chat.Encoder) -> None:
        self._conversations, self._encode = conversations, encode

    def __len__(self) -> int:
        return len(self._conversations)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._encode(c) for c in self._conversations[index]]
        return self._encode(self._conversations[index])

    def check_some(self) -> None:
        """Refuse a template that rewrites the answers of every one of the first conversations."""
        first: chat.RewrittenAnswersError | None = None
        for conversation in self._conversations[:_PROBED]:
            try:
                self._encode(conversation)
                return
            except chat.RewrittenAnswersError as error:
                first = first or error
        if first is not None:
            raise first


def _samples(
    args: argparse.Namespace, plan: CapturePlan, conversations: list[Conversation]
) -> tuple[TokenizedConversations, CacheManifest]:
    """The samples to be, and the manifest that identifies their capture."""
    model, data = plan.config.model, plan.config.data
    target = model.target_model_path
    tokenizer = targets.load_tokenizer(target, trust_remote_code=model.trust_remote_code)
    template = args.chat_template or plan.chat_template or chat.OWN_TEMPLATE
    generation = read_settings(settings_path(Path(args.conversations))) or {}
    kwargs = args.template_kwargs
    if kwargs is None:
        kwargs = generation.get("template_kwargs") or {}
    encode = chat.chat_encoder(
        tokenizer,
        template=template,
        stop_ids=chat.stop_token_ids(target, tokenizer),
        max_length=data.max_length,
        template_kwargs=kwargs,
        last_turn_only=data.train_only_last_turn,
    )
    manifest = CacheManifest(
        target=target,
        target_hash=config_hash(plan.target_config),
        target_layer_ids=plan.layers,
        strategy=plan.config.training.strategy,
        keys=plan.layout.output_names,
        width=len(plan.layers) * plan.hidden_size,
        dtype=args.dtype or plan.dtype,
        chat_template=template,
        chat_template_hash=chat.template_hash(tokenizer, template),
        max_length=data.max_length,
        conversations=Path(args.conversations).name,
        conversations_hash=_hash_of(conversations),
        conversation_count=len(conversations),
        shard_size=args.shard_size,
        template_kwargs=kwargs,
        last_turn_only=data.train_only_last_turn,
        generation=generation,
        versions=library_versions("specforge", "transformers", "torch"),
    )
    return TokenizedConversations(conversations, encode), manifest


def _hash_of(conversations: Sequence[Conversation]) -> str:
    """Hash (16 hex digits) of the conversations' ids and texts."""
    digest = hashlib.sha256()
    for conversation in conversations:
        digest.update(repr(conversation.as_dict()).encode())
    return digest.hexdigest()[:16]


def _share(args: argparse.Namespace) -> Share:
    """This process's share under torchrun; with tensor parallelism the first of a group writes."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    group = args.tp_size if args.backend == "sglang" else 1
    if world % group:
        raise UserError(f"--tp-size {group} does not divide the {world} ranks of this run")
    return Share(rank // group, world // group, writes=rank % group == 0)


def _count(samples: int, size: int, share: Share) -> int:
    shards = range((samples + size - 1) // size)
    return sum(min(size, samples - i * size) for i in shards[share.rank :: share.world])


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
        stored = args.dtype or plan.dtype
        target = targets.load_model(
            plan.config.model.target_model_path,
            dtype=args.compute_dtype or ("float32" if device == "cpu" else stored),
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
        dtype=getattr(torch, args.dtype or plan.dtype),
        tp_size=args.tp_size,
        trust_remote_code=plan.config.model.trust_remote_code,
        with_last=plan.with_last,
        engine_options=args.engine_options,
    )


def _rank_device() -> str:
    device = targets.default_device()
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device
