"""What may mislead in results of servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specforge_dstill.evaluation.serving import ServingReport
from specforge_dstill.evaluation.speed import PLAIN
from specforge_dstill.reporting.facts import template_warnings

#: Options of a launch that change how long a token takes, drafter or none.
_LAUNCH = ("tp_size", "dp_size", "dtype", "attention_backend", "quantization")


def launch_warnings(details: Mapping[str, Any]) -> Iterator[str]:
    """Where a server with a drafter was launched otherwise than the one without, which S is over.

    Only what both tell is compared.
    """
    servers = details.get("servers", {})
    alone = servers.get(PLAIN, {})
    for name, server in servers.items():
        changed = [
            f"{option} {server[option]} and {alone[option]}"
            for option in _LAUNCH
            if option in server and option in alone and server[option] != alone[option]
        ]
        if changed:
            yield (
                f"the servers with {name} and without a drafter were launched with "
                f"{', '.join(changed)}: S is not of the drafter alone; launch them alike."
            )


def served_warnings(reports: Mapping[int, ServingReport]) -> Iterator[str]:
    """Of runs that are averaged.

    Args:
        reports: by the number of their folder.
    """
    all_details = [report.details for report in reports.values()]
    for details in all_details:
        yield from template_warnings(details)
        yield from launch_warnings(details)
    for report in reports.values():
        yield from _requests(report)
    versions = [details.get("versions") for details in all_details]
    if any(found != versions[0] for found in versions):
        yield "the runs were measured with different versions of the engine."
    yield from _other_launches([details.get("servers", {}) for details in all_details])


def _other_launches(runs: Sequence[Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Servers of one name that are not alike in all runs."""
    for name in dict.fromkeys(name for servers in runs for name in servers):
        for option in _LAUNCH:
            told = [servers[name][option] for servers in runs if option in servers.get(name, {})]
            if any(value != told[0] for value in told):
                yield (
                    f"the runs were measured with {name} launched differently: {option} "
                    f"{' and '.join(dict.fromkeys(map(str, told)))}."
                )


def _requests(report: ServingReport) -> Iterator[str]:
    for served in report.served:
        where = f"{served.drafter or 'without a drafter'}, {served.data_set}, "
        where += f"T = {served.temperature:g}, C = {served.concurrency}"
        if served.left_out:
            yield f"{where}: {len(served.left_out)} turns left out (refused by the server)."
        if served.retried:
            yield (
                f"{where}: {served.retried} requests were sent again; throughput counts the "
                "waiting."
            )
