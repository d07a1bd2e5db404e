"""The file of what was measured against servers."""

from __future__ import annotations

import json

import pytest

from specforge_dstill.evaluation.serving import (
    Request,
    Served,
    ServingReport,
    serving_from_json,
)


def test_json_gives_it_back() -> None:
    requests = (Request("a", 10, 0.5, 4, 6), Request("b", 20, 1.5))
    report = ServingReport(
        (
            Served("student", 1, "easy", 1.0, 8, 1.5, requests, rounds=10, accepted=20),
            Served(None, 0, "easy", 1.0, 8, 3.0, requests[1:]),
        ),
        {"engine": "sglang"},
    )
    assert serving_from_json(report.to_json()) == report
    assert report.served[0].throughput == 20
    assert json.loads(report.to_json())["format"] == 1


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 9}', "nothing"])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"format 1|Expecting value"):
        serving_from_json(text)
