"""Logits that are corrected by the token before: DSpark's Markov head over a block.

The correction of position i is ``weight @ latent_i``, where the latent depends on the token at
i - 1, on the state at i and, if the head is recurrent, on what lies before. So a block is filled
from left to right; the states are all there beforehand.

Shapes: n blocks, B positions of a block, R rows (masked positions of the n blocks, in row order),
H hidden size, V vocabulary, r rank of the correction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

# Tokens [n], states [n, H] and what the last step left (None at first) -> latents [n, r], and what
# the next step takes.
Step = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
# Corrected logits [m, V], which are used up, and which of the R rows they are [m] -> tokens [m].
Pick = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Chain:
    """A correction of rank r.

    Attributes:
        weight: [V, r].
        step: gives one position's latents.
    """

    weight: Tensor
    step: Step

    def fill(
        self, logits: Tensor, states: Tensor, blocks: Tensor, masked: Tensor, *, pick: Pick
    ) -> Tensor:
        """Correct the masked positions' logits, each by the token before it.

        Beside the logits up to ``2 n V`` numbers are alive, a position of all blocks at a time.

        Args:
            logits: [R, V], corrected in place.
            states: [n, B, H].
            blocks: [n, B] int64; the tokens of what is not masked.
            masked: [n, B] bool, never the anchor.
            pick: gives a masked position the token that the next one is corrected by.

        Returns:
            [R] int64, the picked tokens.
        """
        filled, memory = blocks.clone(), None
        row_of = masked.flatten().cumsum(0).view(masked.shape) - 1
        for position in range(1, blocks.shape[1]):
            latents, memory = self.step(filled[:, position - 1], states[:, position], memory)
            here = masked[:, position]
            rows = row_of[here, position]
            # For all blocks: a product's last digits depend on how many rows it has, and what one
            # block has committed must not show in another.
            correction = (latents @ self.weight.T)[here]
            corrected = logits[rows].add_(correction)
            logits[rows] = corrected
            filled[here, position] = pick(corrected, rows)
        return filled[masked]
