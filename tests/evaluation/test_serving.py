"""The file of what was measured against servers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from specforge_dstill.evaluation.report import Report
from specforge_dstill.evaluation.serving import (
    Request,
    Served,
    ServingReport,
    serving_from_json,
)
from specforge_dstill.evaluation.serving_text import serving_text


def test_json_gives_it_back() -> None:
    requests = (Request("a", 10, 0.5, 4, 6), Request("b", 20, 1.5))
    report = ServingReport(
        (
            Served("student", 1, "easy", 1.0, 8, 1.5, requests, rounds=10, accepted=20),
            Served(None, 0, "easy", 1.0, 8, 3.0, requests[1:], left_out=("a",), retried=2),
        ),
        {"engine": "sglang"},
    )
    assert serving_from_json(report.to_json()) == report
    assert report.served[0].throughput == 20
    assert json.loads(report.to_json())["format"] == 1


def test_drafts_are_those_of_the_requests_where_all_tell() -> None:
    told, silent = Request("a", 10, 0.5, 4, 6), Request("b", 30, 1.5)
    served = Served("student", 1, "easy", 0.0, 1, 2.0, (told, told), rounds=10, accepted=20)
    assert served.drafted == (8, 12)
    assert replace(served, requests=(told, silent)).drafted == (10, 20)
    assert replace(served, requests=(told, silent), rounds=None).drafted is None
    assert replace(served, requests=(told, silent)).per_token == pytest.approx(2 / 40)


def test_the_table() -> None:
    """S is of the requests that both answered; a dash where there is nothing to tell."""
    requests = (Request("a", 10, 0.5, 4, 6), Request("b", 20, 1.0, 8, 12))
    alone = (Request("a", 10, 1.0), Request("b", 20, 50.0))
    report = ServingReport(
        (
            Served("student", 1, "easy", 0.0, 1, 1.5, requests[:1]),
            Served(None, 0, "easy", 0.0, 1, 51.0, alone),
            Served("ngram", 1, "easy", 1.0, 8, 1.5, requests, rounds=0, accepted=0),
            Served("idle", 1, "hard", 1.0, 8, 1.5, (Request("a", 3, 0.3, 0, 0),)),
        )
    )
    header, _, *rows = serving_text(report).splitlines()
    assert header.split() == ["Data", "set", "T", "C", "Drafter", "τ", "ms/token", "tokens/s", "S"]
    assert [row.split() for row in rows] == [
        ["easy", "0", "1", "plain", "–", "1700.00", "0.6", "1.00"],
        ["easy", "0", "1", "student", "2.50", "50.00", "6.7", "2.00"],
        ["easy", "1", "8", "ngram", "2.50", "50.00", "20.0", "–"],
        ["hard", "1", "8", "idle", "–", "100.00", "2.0", "–"],
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (Report(4, ()).to_json(), "lacks 'served'"),
        ('{"format": 1, "served": []}', "lacks 'details'"),
        ('{"format": 1, "served": [{}]}', "lacks 'requests'"),
        ('{"format": 1, "served": [{"requests": []}]}', "missing 6 required"),
        ('{"format": 1, "served": [3]}', "not subscriptable"),
    ],
)
def test_what_a_file_lacks_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^not the results of servers: .*{said}"):
        serving_from_json(text)


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 9}', "nothing"])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"format 1|Expecting value"):
        serving_from_json(text)
