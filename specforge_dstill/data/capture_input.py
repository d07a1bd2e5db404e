"""What ``capture`` reads: the conversations as samples, and what identifies their capture."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specforge_dstill.data import chat
from specforge_dstill.data.capture_plan import CapturePlan
from specforge_dstill.data.chat_templates import template_hash
from specforge_dstill.data.conversations import Conversation
from specforge_dstill.data.encoding import Encoding
from specforge_dstill.data.feature_files import SCALE
from specforge_dstill.data.float8 import FLOAT8
from specforge_dstill.data.left_out import LeftOutError
from specforge_dstill.data.manifest import CacheManifest
from specforge_dstill.data.sample_check import dtype_name
from specforge_dstill.data.target_identity import config_hash, weights_fingerprint
from specforge_dstill.data.versions import library_versions
from specforge_dstill.errors import UserError

#: ``--dtype``'s word for float8 with scales.
FP8 = "fp8"
#: Options that the manifest notes; they change the last digits of the states at most.
_NOTED = ("backend", "batch_tokens", "compute_dtype", "attn_implementation", "tp_size")
#: Conversations that are tried before the target is loaded.
_PROBED = 20


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
        """Raise what leaves the first conversation out, if the next ones are left out, too."""
        first: LeftOutError | None = None
        for conversation in self._conversations[:_PROBED]:
            try:
                self._encode(conversation)
                return
            except LeftOutError as error:
                first = first or error
        if first is not None:
            raise first


def computed_dtype(args: argparse.Namespace, plan: CapturePlan) -> str:
    """The dtype that the target's states come in, before they are stored."""
    return plan.dtype if args.dtype in (None, FP8) else str(args.dtype)


def read_input(
    args: argparse.Namespace, plan: CapturePlan, conversations: list[Conversation]
) -> tuple[TokenizedConversations, CacheManifest]:
    """The samples to be, and the manifest that identifies their capture."""
    if args.dtype == FP8 and plan.with_last:
        raise UserError(
            f"--dtype {FP8} is for DFlash drafters: a DSpark one learns from the target's last "
            "states, too, which have no 8-bit form; use bfloat16"
        )
    data = plan.config.data
    encoding = Encoding.of(
        plan,
        args.conversations,
        chat_template=args.chat_template,
        template_kwargs=args.template_kwargs,
    )
    manifest = CacheManifest(
        target=plan.config.model.target_model_path,
        target_hash=config_hash(plan.target_config),
        target_weights=weights_fingerprint(plan.config.model.target_model_path) or "",
        target_layer_ids=plan.layers,
        strategy=plan.config.training.strategy,
        keys=(*plan.layout.output_names, *([SCALE] if args.dtype == FP8 else [])),
        width=len(plan.layers) * plan.hidden_size,
        dtype=dtype_name(FLOAT8) if args.dtype == FP8 else computed_dtype(args, plan),
        chat_template=encoding.template,
        chat_template_hash=template_hash(encoding.tokenizer, encoding.template),
        max_length=data.max_length,
        conversations=Path(args.conversations).name,
        conversations_hash=_hash_of(conversations),
        conversation_count=len(conversations),
        shard_size=args.shard_size,
        template_kwargs=encoding.template_kwargs,
        template_day=encoding.day,
        last_turn_only=data.train_only_last_turn,
        generation=encoding.generation,
        draft_config=plan.draft_config.to_diff_dict(),
        options={name: getattr(args, name) for name in _NOTED},
        versions=library_versions("specforge", "transformers", "torch"),
    )
    return TokenizedConversations(conversations, encoding.encode), manifest


def _hash_of(conversations: Sequence[Conversation]) -> str:
    """Hash (16 hex digits) of the conversations' ids and texts."""
    digest = hashlib.sha256()
    for conversation in conversations:
        digest.update(repr(conversation.as_dict()).encode())
    return digest.hexdigest()[:16]
