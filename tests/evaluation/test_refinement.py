"""A block's refinement as a table, in characters and as a figure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console

from specforge_dstill.evaluation.refinement import (
    Refinement,
    State,
    most_telling,
    refinement,
)
from specforge_dstill.evaluation.refinement_plot import plot_refinement
from specforge_dstill.evaluation.refinement_text import draw_text, mixed, percent, visible
from specforge_dstill.maths.blocks import ReferenceBlocks
from specforge_dstill.maths.trajectory import Trajectory, state_at
from tests.evaluation.test_trajectory_statistics import (
    MASK,
    B,
    K,
    by_hand,
    references,
    rolled,
)

REFERENCE = ReferenceBlocks(
    tokens=torch.tensor([[9, 5, 6, 8]]),
    inside=torch.ones(1, 4, dtype=torch.bool),
    scored=torch.tensor([[False, True, True, True]]),
)
PICTURE = """\
position  0  1   2   3
pass 1    t9 ·   t6  t7
                 75% 50%
pass 2    t9 t5  t6  t7
             50%
reference t9 t5  t6  t8
agrees       ✓   ✓   ✗
"""


def name(token: int) -> str:
    return f"t{token}"


def text(refined: Refinement, *, width: int = 80) -> str:
    return draw_text(refined, name, width=width).plain


def test_by_hand() -> None:
    refined = refinement(by_hand(), 0, steps=2, reference=REFERENCE)
    assert [[cell.token for cell in row] for row in refined.passes] == [
        [9, None, 6, 7],
        [9, 5, 6, 7],
    ]
    assert [cell.state for cell in refined.passes[1]] == [
        State.ANCHOR,
        State.COMMITTED,
        State.KEPT,
        State.KEPT,
    ]
    assert refined.agrees == (None, True, True, False)
    assert refined.accepted == 3
    assert text(refined) == PICTURE
    alone = text(refinement(by_hand(), 0, steps=2))
    assert [line.split() for line in alone.splitlines()] == [
        line.split() for line in PICTURE.splitlines()[:-2]
    ]


@pytest.mark.parametrize("every_pass", [False, True])
def test_rows_are_the_states_of_eq_8(every_pass: bool) -> None:
    """After pass t the committed cells are the state before pass t + 1, and every position is
    committed once, at its commit pass, with the probability recorded there."""
    trajectory = rolled(6, seed=5, every_pass=every_pass)
    for block in range(6):
        refined = refinement(trajectory, block, steps=K)
        for t, row in enumerate(refined.passes, start=1):
            state = state_at(
                trajectory.endpoint[block][None],
                trajectory.commit_pass[block][None],
                torch.tensor([t + 1]),
                mask_token_id=MASK,
            )[0].tolist()
            shown = [MASK if c.state is State.MASKED else c.token for c in row]
            assert shown == state
            for i, cell in enumerate(row[1:], start=1):
                assert (cell.state is State.COMMITTED) == (trajectory.commit_pass[block, i] == t)
                recorded = trajectory.top_ids[block, t - 1 if every_pass else 0, i - 1, 0]
                logp = trajectory.top_logp[block, t - 1 if every_pass else 0, i - 1, 0]
                if cell.state is State.COMMITTED or (every_pass and cell.state is State.MASKED):
                    assert cell.token == recorded
                    assert cell.probability == pytest.approx(float(logp.exp()))
                else:
                    assert cell.probability is None
        assert refined.shows_beliefs == every_pass


def test_beliefs_stand_in_brackets() -> None:
    refined = refinement(rolled(1, seed=5, every_pass=True), 0, steps=K)
    masked = [cell for cell in refined.passes[0] if cell.state is State.MASKED]
    assert masked
    for cell in masked:
        assert cell.token is not None
        assert f"(t{cell.token})" in text(refined).splitlines()[1]
    assert "·" not in text(refined)


def test_positions_past_the_end_have_no_reference_and_do_not_count() -> None:
    inside = torch.tensor([[True, True, False, False]])
    reference = ReferenceBlocks(torch.tensor([[9, 5, 0, 0]]), inside, inside & (REFERENCE.scored))
    refined = refinement(by_hand(), 0, steps=2, reference=reference)
    assert refined.reference == (9, 5, None, None)
    assert refined.agrees == (None, True, None, None)
    assert refined.accepted == 2
    assert text(refined).splitlines()[-2:] == ["reference t9 t5", "agrees       ✓"]


def test_a_narrow_terminal_gets_even_panels_with_the_same_cells() -> None:
    refined = refinement(by_hand(), 0, steps=2, reference=REFERENCE)
    narrow = text(refined, width=18)
    assert max(map(len, narrow.splitlines())) <= 18
    first, second = narrow.split("\n\n")
    assert first.splitlines()[0].split() == ["position", "0", "1"]
    assert second.splitlines()[0].split() == ["position", "2", "3"]
    tiny = text(refined, width=1)  # a position a panel, never fewer
    assert tiny.count("position") == 4


def test_colour_on_a_terminal_only() -> None:
    refined = refinement(by_hand(), 0, steps=2, reference=REFERENCE)
    for terminal in (True, False):
        system = "truecolor" if terminal else "auto"
        console = Console(force_terminal=terminal, color_system=system, width=80)
        with console.capture() as shown:
            console.print(draw_text(refined, name, width=80), soft_wrap=True, end="")
        assert ("\x1b[" in shown.get()) == terminal
        if not terminal:
            assert shown.get() == PICTURE


def test_the_most_telling_block() -> None:
    trajectory, random = rolled(40, seed=6), references(40, seed=7)
    noise = torch.rand(40, B, generator=torch.Generator().manual_seed(8)) < 0.3
    tokens = torch.where(noise, random.tokens, trajectory.endpoint)
    reference = ReferenceBlocks(tokens, random.inside, random.scored)
    block = most_telling(trajectory, reference)
    assert block is not None

    def tells(n: int) -> bool:
        order = trajectory.commit_pass[n, 1:].tolist()
        whole = bool(reference.scored[n, 1:].all())
        differing = int((trajectory.endpoint[n, 1:] != reference.tokens[n, 1:]).sum())
        return order != sorted(order) and whole and 0 < differing < (B - 1) / 2

    assert block == next(n for n in range(40) if tells(n))
    left_to_right = Trajectory(
        trajectory.endpoint,
        torch.arange(B).clamp(max=K).expand(40, B),
        trajectory.top_ids,
        trajectory.top_logp,
    )
    assert most_telling(left_to_right) is None
    assert most_telling(trajectory[torch.arange(0)]) is None


def test_json_has_every_cell() -> None:
    refined = refinement(by_hand(), 0, steps=2, reference=REFERENCE)
    content = refined.to_json({5: "five"})
    assert content["texts"] == {"5": "five"}
    assert content["accepted"] == 3
    passes = content["passes"]
    assert isinstance(passes, list)
    assert passes[0][1] == {"state": "masked", "token": None, "probability": None}
    assert passes[0][2]["probability"] == pytest.approx(0.75)


@pytest.mark.parametrize("every_pass", [False, True])
def test_the_figure_is_written(tmp_path: Path, every_pass: bool) -> None:
    trajectory, reference = rolled(4, seed=8, every_pass=every_pass), references(4, seed=9)
    refined = refinement(trajectory, 0, steps=K, reference=reference)
    plot_refinement(refined, lambda token: f"${token}$", tmp_path / "a.png", title="a block")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_what_a_token_is_shown_as() -> None:
    assert visible(" the") == "▁the"
    assert visible("\n\n") == "⏎⏎"
    assert visible("") == "∅"
    assert visible("\x00") == "�"
    assert visible("internationalisation") == "internation…"
    assert visible("漢字漢字漢字漢字") == "漢字漢字漢 …"


def test_certainty_is_not_made_up_by_rounding() -> None:
    assert [percent(p) for p in (0, 0.001, 0.5, 0.994, 0.996, 1)] == [
        *("0%", "<1%", "50%", "99%", ">99%", "100%")
    ]


def test_what_is_not_known_is_not_painted_as_certain(tmp_path: Path) -> None:
    """The last position committed a token outside the retained ids; the one before, at 75 %."""
    one = by_hand()
    sampled = Trajectory(torch.tensor([[9, 5, 6, 4]]), one.commit_pass, one.top_ids, one.top_logp)
    refined = refinement(sampled, 0, steps=2)
    assert [cell.probability for cell in refined.passes[0][2:]] == [pytest.approx(0.75), None]
    drawn = draw_text(refined, name, width=80)
    styles = {drawn.plain[span.start : span.end].strip(): str(span.style) for span in drawn.spans}
    assert styles["t4"] == "black on rgb(214,239,216)"
    assert styles["t6"] == "black on rgb(102,195,128)"
    plot_refinement(refined, name, tmp_path / "a.svg", title="a block")
    figure = (tmp_path / "a.svg").read_text()
    assert "#d6e8f3" in figure, "the palest blue"
    assert "#3492c7" not in figure, "the deepest"


def test_mixed_colours_stay_between_their_ends() -> None:
    assert mixed((0, 0, 0), (100, 200, 50), 0.5) == (50, 100, 25)
    assert mixed((0, 0, 0), (100, 200, 50), 1.2) == (100, 200, 50)
    assert mixed((1, 2, 3), (100, 200, 50), None) == (1, 2, 3)
