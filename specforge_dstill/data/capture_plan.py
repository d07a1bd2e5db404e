"""What a run file wants captured: layers, tensors, dtype and template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specforge_dstill.data import targets
from specforge_dstill.data.draft_config import backbone_of_run
from specforge_dstill.data.draft_file import BACKBONES, check_draft_file
from specforge_dstill.errors import UserError
from specforge_dstill.mode_names import DSTILL_MODES
from specforge_dstill.runfile import RunFile

#: Layouts that this command writes: those of the drafters that our own modes train.
LAYOUTS = tuple(BACKBONES.values())


@dataclass(frozen=True)
class CapturePlan:
    """What SpecForge's resolver says of a run file: layers, tensors and the target.

    ``chat_template`` is None when the run file sets none; ``dtype`` is of the stored states.
    """

    config: Any
    layers: tuple[int, ...]
    layout: Any
    target_config: Any
    draft_config: Any
    chat_template: str | None
    dtype: str

    @classmethod
    def of(cls, run: RunFile) -> CapturePlan:
        """Resolve a run file. UserError when its mode or its draft config has no such plan."""
        from specforge.application import resolve_offline_capture

        config = run.config
        if config.training.strategy in ("dflash", *DSTILL_MODES):
            training = config.training.model_copy(update={"strategy": backbone_of_run(config)})
            config = config.model_copy(update={"training": training})
        model = config.model
        target = targets.load_config(
            model.target_model_path, trust_remote_code=model.trust_remote_code
        )
        check_draft_file(model, target)
        try:
            found = resolve_offline_capture(config, target_config=target)
        except (ValueError, KeyError, OSError) as error:
            raise UserError(f"{run.path}: {' '.join(str(error).split())}") from error
        if found.layout.capture_method not in LAYOUTS:
            raise UserError(
                f"capture writes the features of {' and '.join(LAYOUTS)}, not of {run.mode}; "
                "see SpecForge's scripts/prepare_hidden_states.py for those"
            )
        half = "model.torch_dtype" in run.explicit or targets.default_device() != "cpu"
        return cls(
            config=config,
            layers=found.capture_layers,
            layout=found.layout,
            target_config=target,
            draft_config=found.draft_config,
            chat_template=(
                config.data.chat_template if "data.chat_template" in run.explicit else None
            ),
            # As in training: float32 on a machine without a GPU unless the run file says.
            dtype=model.torch_dtype if half else "float32",
        )

    @property
    def with_last(self) -> bool:
        """Whether the state that the LM head reads is stored, too."""
        return self.layout.last_hidden_feature is not None

    @property
    def hidden_size(self) -> int:
        """The target's."""
        text = getattr(self.target_config, "text_config", None) or self.target_config
        return int(text.hidden_size)
