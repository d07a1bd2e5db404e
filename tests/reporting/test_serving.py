"""S and tau against servers by hand; the shapes of Tables 2 and 3; where intervals are missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specforge_dstill.evaluation.serving import Request, Served, ServingReport
from specforge_dstill.reporting.acceptance import loads
from specforge_dstill.reporting.comparison_tables import PAPERS, comparison_table
from specforge_dstill.reporting.figures import palette
from specforge_dstill.reporting.folders import Results
from specforge_dstill.reporting.grid import Place, SpeedGrid
from specforge_dstill.reporting.grid_figures import concurrency_pictures
from specforge_dstill.reporting.grid_tables import grid_tables, single_request_table
from specforge_dstill.reporting.page import make_page
from specforge_dstill.reporting.serving import serving_grids
from specforge_dstill.reporting.settings import Method
from specforge_dstill.reporting.tables import Number
from specforge_dstill.reporting.variant_table import variant_table
from tests.reporting.examples import decoded, texts

STUDENT, ROW = Method("student", 1), ["easy", "student"]
DETAILS = {"target": "tiny", "engine": "vLLM", "template_kwargs": {}, "note": "Counted past ends."}


def served(drafter: str | None, seconds: float, at: int, data_set: str = "easy") -> Served:
    """Two answers; of a drafter 4 and 6 accepted in 2 and 3 rounds."""
    counted = [(None, None), (None, None)] if drafter is None else [(2, 4), (3, 6)]
    requests = tuple(
        Request(f"{data_set}-{i}", 10 * (i + 1), seconds * (i + 1), rounds, accepted)
        for i, (rounds, accepted) in enumerate(counted)
    )
    return Served(drafter, int(drafter is not None), data_set, 0.0, at, 3 * seconds, requests)


def measured(speed: float = 2, **details: Any) -> ServingReport:
    runs = [
        one
        for at in (1, 8)
        for one in (served(None, 4 * at, at), served("student", 4 * at / (speed / at), at))
    ]
    return ServingReport(tuple(runs), {**DETAILS, **details})


def only(reports: dict[int, ServingReport]) -> SpeedGrid:
    (grid,) = serving_grids(reports)
    return grid


def test_by_hand() -> None:
    grid = only({0: measured()})
    place = Place("easy", STUDENT, 0.0, 1)
    assert grid.tau[place].estimate().value == (4 + 6 + 2 + 3) / 5
    assert grid.speedup[place].values == pytest.approx(2)
    assert grid.speedup[replace(place, concurrency=8)].estimate().value == pytest.approx(0.25)
    # 30 tokens in 12 seconds alone.
    assert grid.rates[None, 0.0, 1].throughput == pytest.approx(2.5)
    assert grid.rates[None, 0.0, 1].per_token == pytest.approx(0.4)
    assert (grid.concurrencies, grid.temperatures) == ((1, 8), (0.0,))


def test_the_engines_own_counters_give_tau_without_an_interval() -> None:
    one = served("student", 1, 1)
    bare = tuple(replace(request, rounds=None, accepted=None) for request in one.requests)
    counted = replace(one, requests=bare, rounds=10, accepted=25)
    place = Place("easy", STUDENT, 0.0, 1)
    estimate = only({0: ServingReport((counted,))}).tau[place].estimate()
    assert (estimate.value, estimate.over_prompts) == (3.5, None)
    assert only({0: ServingReport((replace(counted, rounds=None),))}).tau == {}
    # And no S without the server alone.
    assert only({0: ServingReport((counted,))}).speedup == {}


def test_runs_of_the_same_settings_are_averaged() -> None:
    grid = only({0: measured(), 3: measured(4, date="later")})
    found = grid.speedup[Place("easy", STUDENT, 0.0, 1)]
    assert found.runs == (0, 3)
    assert found.estimate().value == pytest.approx(3)
    assert len(serving_grids({0: measured(), 1: measured(engine="SGLang")})) == 2
    assert only({0: measured(), 1: measured(note="In other words.")}).runs == (0, 1)


def test_runs_over_other_prompts_stand_apart() -> None:
    """A data set that one of them lacks parts no runs."""

    def asked(**hashes: str) -> ServingReport:
        told = {name: {"source": "x", "count": 2, "hash": one} for name, one in hashes.items()}
        return measured(prompts=told)

    grids = serving_grids({0: asked(easy="a"), 1: asked(easy="b"), 2: asked(easy="a", hard="c")})
    assert [grid.runs for grid in grids] == [(0, 2), (1,)]


def test_table_2() -> None:
    table, throughput, per_token = grid_tables([only({0: measured()})])
    assert table.title == "tiny in vLLM: speed-up S by concurrency (Table 2)"
    assert table.header == ("Dataset", "Method", "T = 0: τ", "T = 0: S, C = 1", "T = 0: S, C = 8")
    assert [texts(row) for row in table.rows] == [["easy", "student", "3.00", "2.00×", "0.25×"]]
    assert table.notes[-1] == "Counted past ends."
    assert throughput.header == ("Method", "T = 0, C = 1", "T = 0, C = 8")
    assert throughput.rows[0] == ("without a drafter", "2.5", "0.3")
    assert per_token.rows[1] == ("student", "200.00", "12,800.00")


def test_table_1_is_of_single_requests() -> None:
    """A data set that was measured at other concurrencies only has no number, nor has the mean."""
    more = (served(None, 8, 8, "hard"), served("student", 4, 8, "hard"))
    grids = [
        only({0: measured()}),
        only({0: ServingReport((*measured().served, *more), {**DETAILS, "engine": "SGLang"})}),
    ]
    (table,) = single_request_table(grids)
    assert table.header[4:8] == ("easy S", "easy τ", "hard S", "hard τ")
    assert [texts(row)[1:] for row in table.rows] == [
        ["vLLM", "the template's default", "student", "2.00×", "3.00", "–", "–", "–", "–"],
        ["SGLang", "the template's default", "student", "2.00×", "3.00", "–", "–", "–", "–"],
    ]
    assert not list(single_request_table([only({0: ServingReport(more, DETAILS)})]))
    (alone,) = single_request_table(grids[:1])
    assert alone.header[4:] == ("easy S", "easy τ")


def test_rates_are_of_the_data_sets_that_all_methods_have() -> None:
    """The server alone was measured on one more, and was slow there."""
    both = ServingReport((*measured().served, served(None, 400, 1, "hard")), DETAILS)
    _, throughput, per_token = grid_tables([only({0: both})])
    assert throughput.rows[0] == ("without a drafter", "2.5", "0.3")
    assert per_token.rows[0] == ("without a drafter", "400.00", "3,200.00")
    counted = "Together over the benchmarks that every row of a column has: easy."
    assert throughput.notes == per_token.notes == (counted,)
    apart = ServingReport((served(None, 4, 1), served("student", 4, 1, "hard")), DETAILS)
    _, throughput, _ = grid_tables([only({0: apart})])
    assert [row[1] for row in throughput.rows] == ["–", "–"]
    assert throughput.notes[0].endswith(": none.")
    more = (served(None, 4, 1, "hard"), served("student", 4, 1, "hard"))
    _, throughput, _ = grid_tables([only({0: ServingReport((*measured().served, *more), DETAILS)})])
    assert throughput.notes[0].endswith(": T = 0, C = 1: easy, hard; T = 0, C = 8: easy.")


def test_only_what_both_servers_answered_makes_a_speedup() -> None:
    """The server with the drafter refused the first prompt, the slower one of it alone."""
    alone, drafted = served(None, 4, 1), served("student", 2, 1)
    slow = replace(alone.requests[0], seconds=400)
    alone = replace(alone, requests=(slow, alone.requests[1]))
    drafted = replace(drafted, requests=drafted.requests[1:], left_out=("easy-0",), retried=3)
    grid = only({0: ServingReport((alone, drafted), DETAILS)})
    assert grid.speedup[Place("easy", STUDENT, 0.0, 1)].estimate().value == pytest.approx(2)
    where = "student, easy, T = 0, C = 1"
    assert grid.warnings == (
        f"{where}: 1 turns left out (refused by the server).",
        f"{where}: 3 requests were sent again; throughput counts the waiting.",
    )


def test_a_server_without_a_drafter_alone_has_its_speed() -> None:
    alone = ServingReport((served(None, 4, 1),), DETAILS)
    page = make_page([Results("run", (), alone)], title="t")
    assert [table.title for table in page.tables] == [
        "tiny in vLLM: output tokens a second",
        "tiny in vLLM: milliseconds per output token",
    ]
    assert dict(page.facts[0].values)["Temperatures"] == "0"
    assert page.pictures == ()


def test_reasoning_on_and_off_is_table_3() -> None:
    other = measured(template_kwargs={"enable_thinking": True})
    table, *_ = grid_tables(serving_grids({0: measured(), 1: other}))
    assert table.title == "tiny in vLLM: speed-up S by concurrency (Table 3)"
    assert table.header[:4] == ("Setting", "Reasoning", "Dataset", "Method")
    assert [texts(row)[:2] for row in table.rows] == [
        ["A", "the template's default"],
        ["B", "enable_thinking = true"],
    ]


def test_other_settings_of_servers_have_letters() -> None:
    """The same reasoning: no Table 3, and no two rows with the same names."""
    grids = serving_grids({0: measured(), 1: measured(max_new_tokens=64)})
    table, *rates = grid_tables(grids)
    assert "(Table 2)" in table.title
    assert table.header[:3] == ("Setting", "Dataset", "Method")
    assert [texts(row)[:3] for row in table.rows] == [["A", *ROW], ["B", *ROW]]
    assert {rate.title[-11:] for rate in rates} == {", setting A", ", setting B"}
    (single,) = single_request_table(grids)
    assert [texts(row)[:2] for row in single.rows] == [["A", "tiny"], ["B", "tiny"]]
    assert [load.suffix[-11:] for load in loads(grids)] == [
        *2 * [", setting A"],
        *2 * [", setting B"],
    ]


def test_letters_go_on_after_our_own_settings() -> None:
    own = (decoded(), decoded(1.0))
    other = measured(max_new_tokens=64, cache={"template_kwargs": {"a": 1}}, top_p=0.5)
    page = make_page([Results("run", own, measured()), Results("other", (), other)], title="t")
    assert [facts.title for facts in page.facts] == [
        *("Setting A", "Setting B", "Servers, setting C", "Servers, setting D")
    ]
    assert dict(page.facts[3].values)["Temperatures"] == "0, top_p 0.5"
    assert [warning[:20] for warning in page.warnings] == ["Setting D: the chat "]


def test_an_average_needs_every_data_set_and_concurrency() -> None:
    grid = only(
        {
            0: ServingReport(
                (
                    *measured().served,
                    served(None, 4, 1, "hard"),
                    served("student", 1, 1, "hard"),
                ),
                DETAILS,
            )
        }
    )
    table, *_ = grid_tables([grid])
    # τ, too: a mean over other concurrencies than the rows beside it would be another number.
    assert [texts(row) for row in table.rows] == [
        [*ROW, "3.00", "2.00×", "0.25×"],
        ["hard", "student", "–", "4.00×", "–"],
        ["Average", "student", "–", "3.00×", "–"],
    ]


def test_the_figure_needs_two_concurrencies() -> None:
    grid = only({0: measured()})
    (picture,) = concurrency_pictures(grid, palette(["student"]), name="c")
    assert picture.title == "S against concurrency: tiny in vLLM, T = 0"
    alone = only({0: ServingReport(measured().served[:2], DETAILS)})
    assert list(concurrency_pictures(alone, palette(["student"]), name="c")) == []


def test_the_page_of_servers_alone() -> None:
    page = make_page([Results("run", (), measured(cache={"template_kwargs": {"a": 1}}))], title="t")
    assert [facts.title for facts in page.facts] == ["Servers"]
    assert dict(page.facts[0].values)["Requests at a time"] == "1, 8"
    assert len(page.tables) == 4
    assert len(page.pictures) == 1
    assert len(page.warnings) == 1


def variants() -> ServingReport:
    """Root-only states against the schedule, at two loads; on one benchmark more at the second."""
    root = [served("student-root", 1, at) for at in (1, 16)]
    better = [served("student", 1, at, name) for at, name in ((1, "easy"), (16, "easy"))]
    more = tuple(
        replace(
            one, requests=tuple(replace(r, accepted=(r.accepted or 0) + 1) for r in one.requests)
        )
        for one in better
    )
    return ServingReport((*root, *more, served("student", 1, 16, "hard")), DETAILS)


def test_variants_on_servers_stand_side_by_side_at_each_load() -> None:
    """The paper measures Tables 5 to 8 on servers; a benchmark that one lacks is left out."""
    page = make_page([Results("run", (), variants())], title="t", reference="student")
    where = ", tiny in vLLM, the template's default, T = 0"
    title = "States: the root alone against the cosine schedule (Table 6)"
    tables = {table.title: table for table in page.tables}
    for at in (1, 16):
        table = tables[f"{title}{where}, C = {at}"]
        assert table.header == ("τ", "student-root", "student", "Δ")
        # 15 tokens in 5 rounds, and one more for each of two prompts.
        assert [texts(row) for row in table.rows] == [["easy", "3.00", "3.40", "+0.40"]]
        difference = table.rows[0][3]
        assert isinstance(difference, Number)
        assert difference.estimate.over_prompts is not None, "paired by prompt"
    lone = tables[f"Variants against student{where}, C = 16"]
    assert lone.header == ("τ", "easy", "hard", "Average", "Δ")
    assert [texts(row) for row in lone.rows] == [
        ["student-root", "3.00", "–", "–", "–"],
        ["student", "3.40", "3.00", "3.20", "–"],
    ]


def test_loads_without_acceptance_make_no_tables() -> None:
    alone = only({0: ServingReport((served(None, 4, 1),), DETAILS)})
    assert list(loads([alone])) == []
    at_1, at_16 = loads([only({0: variants()})])
    assert (at_1.concurrency, at_16.concurrency) == (1, 16)
    assert at_1.shared([STUDENT, Method("student", 8)]) == ()
    assert list(comparison_table(at_1, PAPERS[0])) == []
    assert list(variant_table(at_1, "teacher")) == []
