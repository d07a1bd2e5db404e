"""Which of our own decodings stand side by side by temperature."""

from __future__ import annotations

from typing import Any

import pytest

from specforge_dstill.evaluation.replay import Walk
from specforge_dstill.evaluation.report import Report, Score
from specforge_dstill.evaluation.speed import Speed, Timing
from specforge_dstill.evaluation.stopwatch import Seconds
from specforge_dstill.reporting.grid import SpeedGrid, decoded_grids
from specforge_dstill.reporting.grid_tables import grid_tables
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.settings import settings_of
from tests.reporting.examples import decoded, texts


def side_by_side(*reports: Report) -> list[SpeedGrid]:
    settings = settings_of(enumerate(reports))
    return list(decoded_grids([Quantities(setting) for setting in settings]))


def test_decoding_at_several_temperatures_stands_side_by_side() -> None:
    assert side_by_side(decoded()) == []
    (grid,) = side_by_side(decoded(rule="compare"), decoded(1.0, rule="reject", top_p=1.0))
    (table,) = grid_tables([grid])
    assert table.title.endswith("(Table 2), settings A, B")
    assert table.header[2:] == ("T = 0: τ", "T = 0: S, C = 1", "T = 1: τ", "T = 1: S, C = 1")
    assert texts(table.rows[0]) == ["easy", "student", "2.67", "3.00×", "2.67", "3.00×"]


@pytest.mark.parametrize(
    "other",
    [{"dtype": "bfloat16"}, {"max_new_tokens": 64}, {"prompts": {"easy": {"hash": "b"}}}],
)
def test_decoding_with_other_settings_does_not(other: dict[str, Any]) -> None:
    same: dict[str, Any] = {"dtype": "float32", "prompts": {"easy": {"hash": "a"}}}
    assert side_by_side(decoded(**same), decoded(1.0, **{**same, **other})) == []
    assert len(side_by_side(decoded(**same), decoded(1.0, **same))) == 1


def test_decoding_over_other_prompts_does_not() -> None:
    """Where results do not tell a hash their names do; later turns may have had no room."""

    def of(temperature: float, *names: str) -> Report:
        walks = {"easy": [Walk(name, (1,)) for name in names]}
        timed = Speed({"easy": [Timing(name, 5, Seconds(verify=1)) for name in names]}, 1)
        score = Score("student", 1, walks, timed)
        return Report(4, (score,), {"temperature": temperature}, plain=timed)

    assert side_by_side(of(0, "a", "b"), of(1, "a")) == []
    assert len(side_by_side(of(0, "a", "a/2"), of(1, "a"))) == 1


def test_every_way_of_sampling_stands_beside_greedy_decoding() -> None:
    """Two settings at one temperature once dropped the table."""
    reports = (decoded(1.0, rule="compare"), decoded(rule="compare"), decoded(1.0, rule="reject"))
    grids = side_by_side(*reports)
    assert [grid.settings for grid in grids] == [("B", "A"), ("B", "C")]
    (table,) = grid_tables(grids)
    assert table.header[:3] == ("Setting", "Dataset", "Method")
    assert [texts(row)[0] for row in table.rows] == ["B, A"] * 3 + ["B, C"] * 3
