"""What of a target an exported drafter must agree with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specforge.modeling.target.target_utils import target_text_config, target_vocab_size

from specforge_dstill.data import targets
from specforge_dstill.data.target_identity import config_hash
from specforge_dstill.errors import UserError
from specforge_dstill.modes.target_scales import embed_scale, logit_softcap


@dataclass(frozen=True)
class TargetFacts:
    """A target, by its configuration alone.

    Attributes:
        name: its folder or its name on the Hub.
        layers, hidden_size, vocab_size: of the language model; rows of its embeddings.
        max_positions: the longest sequence, None where the configuration does not say.
        architectures: its classes.
        softcap, embed_scale: Gemma's bound on the final logits, and what it multiplies its
            embeddings by.
        config_hash: of the whole configuration.
    """

    name: str
    layers: int
    hidden_size: int
    vocab_size: int
    max_positions: int | None
    architectures: tuple[str, ...]
    softcap: float | None
    embed_scale: float | None
    config_hash: str

    @classmethod
    def of(cls, target: str, *, trust_remote_code: bool = False) -> TargetFacts:
        """Read the configuration. UserError when it is not to be had."""
        config = targets.load_config(target, trust_remote_code=trust_remote_code)
        text = target_text_config(config)
        return cls(
            name=target,
            layers=int(text.num_hidden_layers),
            hidden_size=int(text.hidden_size),
            vocab_size=target_vocab_size(config),
            max_positions=targets.max_positions(config),
            architectures=tuple(config.architectures or ()),
            softcap=logit_softcap(config),
            embed_scale=embed_scale(config),
            config_hash=config_hash(config),
        )

    def check_fits(self, draft: Any, *, layer_ids: list[int], mask_token_id: int) -> None:
        """Refuse a drafter of another target.

        Engines take the target's embeddings and head for it and read what its config says: of a
        layer or a token that is not there, or of another width, they tell late or not at all.

        Args:
            draft: SpecForge's draft config.

        Raises:
            UserError: names what differs.
        """
        told = getattr(draft, "num_target_layers", None)
        pairs = {
            "vocab_size": (draft.vocab_size, self.vocab_size),
            "hidden_size": (draft.hidden_size, self.hidden_size),
            "num_target_layers": (self.layers if told is None else told, self.layers),
        }
        for name, (own, its) in pairs.items():
            if int(own) != its:
                raise UserError(
                    f"the drafter has {name} {own}, {self.name} has {its}: it was trained for "
                    "another target; name that one with --target"
                )
        for layer in layer_ids:
            if not 0 <= layer < self.layers:
                raise UserError(
                    f"the drafter reads target layer {layer}; {self.name} has layers 0 to "
                    f"{self.layers - 1}"
                )
        if not 0 <= mask_token_id < self.vocab_size:
            raise UserError(
                f"the mask token is {mask_token_id}; {self.name} has tokens 0 to "
                f"{self.vocab_size - 1}"
            )
