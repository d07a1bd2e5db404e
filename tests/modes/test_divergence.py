"""A training that diverges: it is told of, and what lies on disk stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specforge_dstill.errors import UserError
from specforge_dstill.modes.divergence import LossWatch, require_finite_weights
from tests.modes.conftest import WILD, Stages, TwoRanks
from tests.modes.running import draft_of, train

NOT_FINITE = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("mode", ["dstill_teacher", "dstill_student"])
def test_a_training_that_diverges_ends_and_saves_none_of_it(
    stages: Stages, tmp_path: Path, mode: str
) -> None:
    """At a learning rate that no weight survives, with a checkpoint after every step."""
    folder = stages.copy_to(tmp_path)
    ended = train(folder, mode, *WILD, "training.save_interval=1")
    assert "training diverged: " in ended.error
    assert "lower training.learning_rate" in ended.error
    saved = sorted((folder / "out/wild").glob(f"{mode}-step*"))
    assert saved
    for checkpoint in saved:
        assert all(weight.isfinite().all() for weight in draft_of(checkpoint).values())
    assert ended.out.count("\nstep ") < 20  # of 27


@pytest.mark.parametrize("mode", ["dstill_teacher", "dstill_student"])
def test_a_training_that_saves_nothing_ends_by_its_loss(
    stages: Stages, tmp_path: Path, mode: str
) -> None:
    ended = train(stages.copy_to(tmp_path), mode, *WILD)
    assert ended.error.startswith("training diverged: its loss is ")
    assert ended.out.count("\nstep ") < 20


def test_ranks_that_diverge_end_with_the_mistake(on_two_ranks: TwoRanks) -> None:
    """The rank whose loss it is says so; another ends with it, or for its sake."""
    assert 2 in on_two_ranks.statuses("wild")
    assert 0 not in on_two_ranks.statuses("wild")
    assert "training diverged: its loss is " in on_two_ranks.outcome.err


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
    weights = {"norm.weight": torch.ones(3), "fc.weight": torch.ones(2, 3)}
    require_finite_weights(weights)
    weights["fc.weight"][1, 2] = value
    with pytest.raises(UserError, match=r"diverged: fc\.weight is not finite; start anew"):
        require_finite_weights(weights)
