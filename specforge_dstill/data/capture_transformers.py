"""Hidden states of a target through transformers: only the wanted layers are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specforge_dstill.data.chat import TokenSample
from specforge_dstill.errors import UserError


@dataclass(frozen=True, eq=False)
class Features:
    """One sample's states on the CPU: ``hidden_states`` [S, layers*H], ``last`` [S, H] or None.

    ``last`` is what the LM head reads (after the final norm).
    """

    hidden_states: Tensor
    last: Tensor | None = None


class TransformersExtractor:
    """Runs batches through a target without its LM head.

    The state of layer l is ``output_hidden_states[l + 1]``; for the last layer transformers
    gives the state after the final norm there, and so does this.
    """

    def __init__(self, model: Any, layers: Sequence[int], *, with_last: bool = False) -> None:
        self._decoder = model.get_decoder()
        self._blocks = decoder_layers(self._decoder)
        self._layers, self._with_last = tuple(layers), with_last
        beyond = [layer for layer in layers if not 0 <= layer < len(self._blocks)]
        if beyond:
            raise UserError(
                f"the draft config wants layer {beyond[0]} of the target, which has layers "
                f"0 to {len(self._blocks) - 1}"
            )

    @torch.inference_mode()
    def __call__(self, samples: Sequence[TokenSample]) -> list[Features]:
        """Features of each sample. Padding is on the right, behind an attention mask."""
        device = next(self._decoder.parameters()).device
        ids = nn.utils.rnn.pad_sequence([s.input_ids for s in samples], batch_first=True)
        lengths = torch.tensor([len(s) for s in samples])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        states, last = self._forward(ids.to(device), mask.to(device))
        rows = []
        for row, sample in enumerate(samples):
            kept = [states[layer][row, : len(sample)] for layer in self._layers]
            # The copies let go of the batch's padded tensors.
            rows.append(
                Features(
                    torch.cat(kept, dim=-1).cpu(),
                    last[row, : len(sample)].clone().cpu() if self._with_last else None,
                )
            )
        return rows

    def _forward(self, ids: Tensor, mask: Tensor) -> tuple[dict[int, Tensor], Tensor]:
        states: dict[int, Tensor] = {}
        final = len(self._blocks) - 1

        def keep(layer: int) -> Any:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                states[layer] = output[0] if isinstance(output, tuple) else output

            return hook

        hooks = [
            self._blocks[layer].register_forward_hook(keep(layer))
            for layer in self._layers
            if layer != final
        ]
        try:
            output = self._decoder(input_ids=ids, attention_mask=mask, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        states[final] = output.last_hidden_state
        return states, output.last_hidden_state


def decoder_layers(decoder: Any) -> nn.ModuleList:
    """The decoder's list of layers: the one ModuleList as long as its configuration says."""
    config = getattr(decoder.config, "text_config", None) or decoder.config
    count = config.num_hidden_layers
    lists = [m for m in decoder.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    named = getattr(decoder, "layers", None)
    if named is not None and any(named is m for m in lists):
        return named
    if len(lists) != 1:
        raise UserError(
            f"{type(decoder).__name__}: its {count} decoder layers cannot be told apart; "
            "use --backend sglang for this target"
        )
    return lists[0]
