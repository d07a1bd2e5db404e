"""A training that diverges: it is told of, and what lies on disk stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specforge_dstill.errors import UserError
from specforge_dstill.modes.block_step import draft_weights
from specforge_dstill.modes.divergence import LossWatch
from tests.modes.conftest import Stages
from tests.modes.running import draft_of, train

NOT_FINITE = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("mode", ["dstill_teacher", "dstill_student"])
def test_a_training_that_diverges_ends_and_saves_none_of_it(
    stages: Stages, tmp_path: Path, mode: str
) -> None:
    """At a learning rate that no weight survives, with a checkpoint after every step."""
    folder = stages.copy_to(tmp_path)
    words = ("training.learning_rate=1e35", "training.max_grad_norm=1e30", "training.num_epochs=9")
    ended = train(folder, mode, *words, "training.save_interval=1", "output_dir=out/wild")
    assert "training diverged: " in ended.error
    assert "lower training.learning_rate" in ended.error
    saved = sorted((folder / "out/wild").glob(f"{mode}-step*"))
    assert saved
    for checkpoint in saved:
        assert all(weight.isfinite().all() for weight in draft_of(checkpoint).values())
    assert ended.out.count("\nstep ") < 20  # of 27


@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_loss_is_looked_at_when_the_next_step_begins(value: float) -> None:
    watch = LossWatch()
    watch.look()
    for loss in (1.5, value):
        watch.look()
        watch.note(torch.tensor(loss, requires_grad=True))
    with pytest.raises(UserError, match="diverged: its loss is"):
        watch.look()


@pytest.mark.parametrize("value", NOT_FINITE)
def test_weights_that_are_not_finite_are_named(value: float) -> None:
    state = {
        "draft_model.fc.weight": torch.ones(2, 3),
        "embed_tokens.weight": torch.full((1,), value),
    }
    assert set(draft_weights(state)) == {"fc.weight"}
    state["draft_model.fc.weight"][1, 2] = value
    with pytest.raises(UserError, match=r"fc\.weight is not finite, so it is not saved"):
        draft_weights(state)
