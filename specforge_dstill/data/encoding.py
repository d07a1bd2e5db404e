"""How a run file's conversations become tokens, as ``capture`` does it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specforge_dstill.data import chat, targets
from specforge_dstill.data.answers_file import answer_settings
from specforge_dstill.data.capture_plan import CapturePlan
from specforge_dstill.data.chat_templates import OWN_TEMPLATE
from specforge_dstill.data.template_day import prints_day, stopped_clock


@dataclass(frozen=True)
class Encoding:
    """A target's tokenizer with the template settings of one file of conversations.

    Attributes:
        template: one of SpecForge's, or the tokenizer's own.
        template_kwargs: that go to it.
        day: that it prints, that of the answers; "" where it prints none, or today's.
        generation: the settings that the answers were made with, {} when unknown.
    """

    tokenizer: Any
    template: str
    template_kwargs: dict[str, Any]
    day: str
    generation: dict[str, Any]
    encode: chat.Encoder

    @classmethod
    def of(
        cls,
        plan: CapturePlan,
        conversations: str | Path,
        *,
        chat_template: str | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> Encoding:
        """Template and keywords as given, else the run file's and those of ``regenerate``."""
        model, data = plan.config.model, plan.config.data
        tokenizer = targets.load_tokenizer(
            model.target_model_path, trust_remote_code=model.trust_remote_code
        )
        template = chat_template or plan.chat_template or OWN_TEMPLATE
        generation = answer_settings(Path(conversations)) or {}
        if template_kwargs is None:
            template_kwargs = generation.get("template_kwargs") or {}
        prints = template == OWN_TEMPLATE and prints_day(tokenizer)
        day = str(generation.get("date", "")) if prints else ""
        encode = chat.chat_encoder(
            tokenizer,
            template=template,
            stop_ids=chat.stop_token_ids(
                model.target_model_path, tokenizer, trust_remote_code=model.trust_remote_code
            ),
            max_length=data.max_length,
            template_kwargs=template_kwargs | stopped_clock(day),
            last_turn_only=data.train_only_last_turn,
        )
        return cls(tokenizer, template, template_kwargs, day, generation, encode)
