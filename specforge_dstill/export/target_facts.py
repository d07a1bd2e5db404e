"""What of a target an exported drafter must agree with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specforge_dstill.data import targets
from specforge_dstill.data.target_identity import TargetShape, config_hash
from specforge_dstill.errors import UserError
from specforge_dstill.modes.target_scales import embed_scale, logit_softcap


@dataclass(frozen=True)
class TargetFacts:
    """A target, by its configuration alone.

    Attributes:
        name: its folder or its name on the Hub.
        max_positions: the longest sequence, None where the configuration does not say.
        architectures: its classes.
        softcap, embed_scale: Gemma's bound on the final logits, and what it multiplies its
            embeddings by.
        config_hash: of the whole configuration.
    """

    name: str
    shape: TargetShape
    max_positions: int | None
    architectures: tuple[str, ...]
    softcap: float | None
    embed_scale: float | None
    config_hash: str

    @classmethod
    def of(cls, target: str, *, trust_remote_code: bool = False) -> TargetFacts:
        """Read the configuration. UserError when it is not to be had."""
        config = targets.load_config(target, trust_remote_code=trust_remote_code)
        return cls(
            name=target,
            shape=TargetShape.of(config),
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
        misfits = self.shape.misfits(
            vocab_size=int(draft.vocab_size),
            hidden_size=int(draft.hidden_size),
            num_target_layers=getattr(draft, "num_target_layers", None),
            layer_ids=layer_ids,
            mask_token_id=mask_token_id,
        )
        for misfit in misfits:
            raise UserError(
                f"the drafter is not one of {self.name}: {misfit}; name its own target with "
                "--target"
            )
