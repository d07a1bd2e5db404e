"""Training curves from SpecForge's lines and from TensorBoard's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from specforge_dstill.errors import UserError
from specforge_dstill.reporting.curve_figures import curve_pictures
from specforge_dstill.reporting.curves import Curve, read_curves
from specforge_dstill.reporting.figures import palette

LOG = """$ torchrun -m specforge.train
step 250: {'acc': 0.5, 'loss': 1.75, 'lr': 2e-05, 'accept_length': 3.0, 'perf/x': 1.0}
 step 300: {'loss': 9.0}
step 500: {'acc': 0.75, 'loss': nan, 'eval/accept_1': 4.5, 'eval/simulated_acc_len': 9.0}
noise
step 250: {'acc': 0.625, 'loss': 1.5e-1}
"""


def test_lines_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "student.log"
    path.write_text(LOG)
    found = {curve.metric: curve.points for curve in read_curves("student", path)}
    assert found == {
        # A resumed training logs steps again: the last word counts.
        "acc": ((250, 0.625), (500, 0.75)),
        "loss": ((250, 0.15),),
        "accept_length": ((250, 3.0),),
        "eval/accept_1": ((500, 4.5),),
    }


def test_tensorboards_files(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(tmp_path / "runs") as writer:
        for step in (10, 20):
            writer.add_scalar("loss", 1 / step, step)
            writer.add_scalar("perf/x", step, step)
    (curve,) = read_curves("dflash", tmp_path)
    assert curve.metric == "loss"
    assert curve.points == ((10, pytest.approx(0.1)), (20, pytest.approx(0.05)))


def test_nothing_to_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no TensorBoard files"):
        read_curves("x", tmp_path)
    (tmp_path / "x.log").write_text("nothing")
    with pytest.raises(UserError, match="holds no steps"):
        read_curves("x", tmp_path / "x.log")
    with pytest.raises(UserError, match="cannot be read"):
        read_curves("x", tmp_path / "none.log")


def test_a_figure_a_metric_and_none_for_a_single_point() -> None:
    many = tuple((step, 1.0) for step in range(100))
    curves = [
        Curve("dflash", "loss", ((1, 2.0), (2, 1.0))),
        Curve("student", "loss", many),
        Curve("student", "accept_length", many),
        Curve("student", "eval/accept_8", many),
        Curve("dflash", "acc", ((1, 0.5),)),
    ]
    pictures = list(curve_pictures(curves, palette(["dflash", "student"])))
    assert [picture.title for picture in pictures] == [
        "Training: acceptance length of the training blocks",
        "Training: loss",
        "Training: eval/accept_8",
    ]
    assert "not τ" in pictures[0].notes[0]
    (about, loss, _) = list(curve_pictures(curves, palette(["dflash", "student"]), about="Seed 3."))
    assert (about.notes[0], loss.notes[0]) == ("Seed 3.", "Seed 3.")
    assert "var(--m0)" not in pictures[0].svg
    assert "var(--m1)" in pictures[0].svg


def test_acceptance_on_held_out_samples_is_in_the_order_of_its_passes(tmp_path: Path) -> None:
    """And says how it differs from an evaluation's τ."""
    path = tmp_path / "teacher.log"
    lines = ("{'eval/tau_1': 1.5, 'eval/tau_16': 2.5, 'eval/tau_8': 2.0}", "{'loss': 1.0}")
    path.write_text("".join(f"step {step}: {line}\n" for step in (2, 4) for line in lines))
    curves = read_curves("teacher", path)
    pictures = list(curve_pictures(curves, palette(["teacher"])))
    titles = [picture.title for picture in pictures]
    held_out = "Training: block acceptance on held-out samples"
    assert titles == [
        "Training: loss",
        *(f"{held_out}, {passes}" for passes in ("1 pass", "8 passes", "16 passes")),
    ]
    assert all(
        "no evaluation" in note or "rounds of decoding" in note for note in pictures[1].notes
    )
