"""What a reader of servers' results is warned of."""

from __future__ import annotations

from typing import Any

from specforge_dstill.evaluation.serving import ServingReport
from specforge_dstill.reporting.served_warnings import launch_warnings, served_warnings


def warned(*all_details: dict[str, Any]) -> list[str]:
    return list(served_warnings({n: ServingReport((), d) for n, d in enumerate(all_details)}))


def test_a_server_launched_otherwise_than_the_one_alone_is_told() -> None:
    """S would be of the launch. What one of them does not tell is not compared."""
    alone: dict[str, Any] = {
        "url": "a",
        "tp_size": 1,
        "dtype": "float32",
        "attention_backend": "fa3",
    }
    other = {"url": "b", "tp_size": 8, "dtype": "bfloat16", "quantization": None}
    servers = {"plain": alone, "student": other, "alike": {**alone, "url": "c"}}
    (told,) = launch_warnings({"servers": servers})
    assert told == (
        "the servers with student and without a drafter were launched with tp_size 8 and 1, dtype "
        "bfloat16 and float32: S is not of the drafter alone; launch them alike."
    )
    assert warned({"servers": servers}) == [told]
    for untold in ({"student": other}, {"plain": {"url": "a"}, "student": other}):
        assert not list(launch_warnings({"servers": untold}))
    assert not list(launch_warnings({}))


def test_runs_on_other_servers_are_told() -> None:
    """They are averaged as runs are; nothing else on the page tells."""
    first = {"versions": {"vLLM": "0.30.0"}, "servers": {"student": {"url": "a", "tp_size": 1}}}
    assert warned(first, {**first, "servers": {"student": {"url": "b", "tp_size": 1}}}) == []
    second = {"versions": {"vLLM": "0.31.0"}, "servers": {"student": {"tp_size": 8}}}
    assert warned(first, second) == [
        "the runs were measured with different versions of the engine.",
        "the runs were measured with student launched differently: tp_size 1 and 8.",
    ]


def test_every_runs_template_is_looked_at() -> None:
    (told,) = warned({}, {"cache": {"template_kwargs": {"a": 1}}})
    assert "in the feature cache: a = 1" in told
