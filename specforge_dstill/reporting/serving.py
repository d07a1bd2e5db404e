"""Acceptance, speed-up and throughput against servers, from what every request took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import nan

import numpy as np

from specforge_dstill.evaluation.intervals import DRAWS, Quantity, combine
from specforge_dstill.evaluation.serving import Request, Served, ServingReport, paired
from specforge_dstill.reporting.grid import Place, Rate, SpeedGrid
from specforge_dstill.reporting.prompts import PromptResamples
from specforge_dstill.reporting.served_warnings import served_warnings
from specforge_dstill.reporting.settings import Method, grouped, letters, template_text


def serving_grids(reports: Mapping[int, ServingReport], *, after: int = 0) -> list[SpeedGrid]:
    """One for all runs of the same settings over the same prompts.

    Args:
        after: how many settings of the page have letters already.
    """
    groups = grouped(reports.items())
    return [_grid(*pair) for pair in zip(groups, letters(len(groups), after=after), strict=True)]


def _grid(reports: Mapping[int, ServingReport], letter: str) -> SpeedGrid:
    where = f"Setting {letter}: " if letter else ""
    details = next(iter(reports.values())).details
    prompts = _prompts(reports)
    runs: dict[Place, dict[int, tuple[Served, Served | None]]] = {}
    for run, report in reports.items():
        alone = {served.point: served for served in report.served if served.drafter is None}
        for served in report.served:
            if served.drafter is not None:
                method = Method(served.drafter, served.steps)
                place = Place(served.data_set, method, served.temperature, served.concurrency)
                runs.setdefault(place, {})[run] = (served, alone.get(served.point))
    tau = {place: _tau(prompts[place.data_set], pairs) for place, pairs in runs.items()}
    speedup = {place: _speedup(prompts[place.data_set], pairs) for place, pairs in runs.items()}
    return SpeedGrid(
        str(details.get("target", "target")),
        str(details.get("engine", "server")),
        template_text(details.get("template_kwargs", {})),
        {place: quantity for place, quantity in tau.items() if quantity is not None},
        {place: quantity for place, quantity in speedup.items() if quantity is not None},
        _rates(reports),
        details,
        tuple(reports),
        tuple(f"{where}{text}" for text in dict.fromkeys(served_warnings(reports))),
        (letter,) if letter else (),
    )


def _prompts(reports: Mapping[int, ServingReport]) -> dict[str, PromptResamples]:
    names: dict[str, dict[str, None]] = {}
    for report in reports.values():
        for served in report.served:
            answers = names.setdefault(served.data_set, {})
            answers.update((request.name, None) for request in served.requests)
    return {data_set: PromptResamples.of(data_set, answers) for data_set, answers in names.items()}


def _tau(
    prompts: PromptResamples, runs: Mapping[int, tuple[Served, Served | None]]
) -> Quantity | None:
    """By request where every request tells; else from the engine's counters, without interval."""
    served = [one for one, _ in runs.values()]
    rows = [[_rounds(request) for request in one.requests] for one in served]
    if all(row is not None for of_run in rows for row in of_run):
        return prompts.ratio(tuple(runs), [[row for row in of_run if row] for of_run in rows])
    counted = [
        1 + one.accepted / one.rounds for one in served if one.rounds and one.accepted is not None
    ]
    if len(counted) < len(served):
        return None
    values = np.full((len(counted), 1 + DRAWS), np.nan)
    values[:, 0] = counted
    return Quantity(tuple(runs), values)


def _rounds(request: Request) -> tuple[str, float, float] | None:
    if request.rounds is None or request.accepted is None:
        return None
    return request.name, request.accepted + request.rounds, request.rounds


def _speedup(
    prompts: PromptResamples, runs: Mapping[int, tuple[Served, Served | None]]
) -> Quantity | None:
    """Time per output token of the server alone over that with the drafter."""
    pairs = {run: paired(one, alone) for run, (one, alone) in runs.items() if alone is not None}
    if not pairs:
        return None

    def per_token(which: Sequence[Served]) -> Quantity:
        rows = [[(r.name, r.seconds, r.tokens) for r in one.requests] for one in which]
        return prompts.ratio(tuple(pairs), rows)

    drafted, plain = zip(*pairs.values(), strict=True)
    return combine(np.divide, per_token(plain), per_token(drafted))


def _rates(
    reports: Mapping[int, ServingReport],
) -> dict[tuple[Method | None, float, int], Rate]:
    """Of the data sets that all methods of a column have: others write more or less in a second."""
    columns: dict[tuple[float, int], dict[Method | None, list[Served]]] = {}
    for report in reports.values():
        for served in report.served:
            method = None if served.drafter is None else Method(served.drafter, served.steps)
            column = columns.setdefault((served.temperature, served.concurrency), {})
            column.setdefault(method, []).append(served)
    rates: dict[tuple[Method | None, float, int], Rate] = {}
    for point, column in columns.items():
        data_sets = _shared(column.values())
        for method, passes in column.items():
            rates[method, *point] = _rate(passes, data_sets)
    return rates


def _shared(groups: Iterable[Sequence[Served]]) -> tuple[str, ...]:
    """Data sets that each of several methods has, in the order of the first."""
    first, *others = [dict.fromkeys(served.data_set for served in group) for group in groups]
    return tuple(name for name in first if all(name in names for names in others))


def _rate(group: Sequence[Served], data_sets: tuple[str, ...]) -> Rate:
    counted = [one for one in group if one.data_set in data_sets]
    requests = [request for one in counted for request in one.requests]
    tokens = sum(request.tokens for request in requests)
    seconds = sum(one.seconds for one in counted)
    return Rate(
        tokens / seconds if seconds else nan,
        sum(request.seconds for request in requests) / tokens if tokens else nan,
        data_sets,
    )
