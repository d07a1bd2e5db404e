"""Tables of servers, in the shapes of the paper's 1, 2 and 3; and throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan

from specforge_dstill.evaluation.intervals import Quantity, average, combine
from specforge_dstill.reporting.grid import Place, Rate, SpeedGrid
from specforge_dstill.reporting.main_tables import AVERAGE, TIMES
from specforge_dstill.reporting.settings import Method
from specforge_dstill.reporting.tables import Cell, Number, Table
from specforge_dstill.table import NOTHING

_ABOUT = (
    "S is the time per output token without the drafter over that with it, at the same "
    "temperature and number of requests at a time (C)."
)
_AVERAGED = "τ is averaged over concurrencies, where all of them were measured."


def single_request_table(grids: Sequence[SpeedGrid]) -> Iterator[Table]:
    """S and tau by benchmark, greedily and a request at a time, where that was measured."""
    first = (0.0, 1)
    sets = tuple(dict.fromkeys(name for grid in grids for name in grid.data_sets))
    columns = (*sets, *([AVERAGE] if len(sets) > 1 else []))

    def cells(grid: SpeedGrid, method: Method) -> Iterator[Cell]:
        for name in columns:
            s, tau = (_at(grid, found, name, method, *first) for found in (grid.speedup, grid.tau))
            if name == AVERAGE and len(grid.data_sets) < len(sets):
                s = tau = None
            yield NOTHING if s is None else Number(s.estimate(), TIMES)
            yield NOTHING if tau is None else Number(tau.estimate())

    named = any(grid.settings for grid in grids)
    rows = [
        (
            *([", ".join(grid.settings)] if named else []),
            *(grid.target, grid.engine, grid.reasoning, str(method)),
            *cells(grid, method),
        )
        for grid in grids
        for method in grid.methods
        if any(p.method == method and (p.temperature, p.concurrency) == first for p in grid.places)
    ]
    if rows:
        names = (*(["Setting"] if named else []), "Target", "Engine", "Reasoning", "Method")
        header = (f"{name} {what}" for name in columns for what in ("S", "τ"))
        yield Table(
            "Speed-up S and acceptance length τ, T = 0, C = 1 (Table 1)",
            (*names, *header),
            tuple(rows),
            len(names),
            (
                _ABOUT,
                "Average: unweighted over benchmarks, of those that have all of them.",
                "Without the paper's number of parameters, which servers do not tell.",
            ),
        )


def grid_tables(grids: Sequence[SpeedGrid]) -> Iterator[Table]:
    """Those of one target and engine share a table; what tells them apart stands before."""
    groups: dict[tuple[str, str], list[SpeedGrid]] = {}
    for grid in grids:
        groups.setdefault((grid.target, grid.engine), []).append(grid)
    for (target, engine), group in groups.items():
        names = _names(group)
        number = "Table 3" if "Reasoning" in names else "Table 2"
        alone = group[0].suffix if len(group) == 1 else ""
        if any(grid.places for grid in group):
            title = f"{target} in {engine}: speed-up S by concurrency ({number}){alone}"
            yield _table(title, group, names)
        for grid in group:
            if grid.rates:
                yield from _rates(grid, reasoning="Reasoning" in names)


def _names(group: Sequence[SpeedGrid]) -> dict[str, list[str]]:
    """The columns that tell grids apart, and what each has there."""
    found = {
        "Setting": [", ".join(grid.settings) for grid in group],
        "Reasoning": [grid.reasoning for grid in group],
    }
    return {name: told for name, told in found.items() if len({*told}) > 1}


def over_data_sets(
    grid: SpeedGrid,
    quantities: Mapping[Place, Quantity],
    method: Method,
    temperature: float,
    at: int,
) -> Quantity | None:
    """The unweighted mean over data sets; None unless every one was measured."""
    places = [Place(name, method, temperature, at) for name in grid.data_sets]
    found = [quantities[place] for place in places if place in quantities]
    return combine(average, *found) if found and len(found) == len(places) else None


def _table(title: str, group: Sequence[SpeedGrid], names: Mapping[str, Sequence[str]]) -> Table:
    points = {
        t: sorted({p.concurrency for g in group for p in g.places if p.temperature == t})
        for t in sorted({t for g in group for t in g.temperatures})
    }
    header = [*names, "Dataset", "Method"]
    for temperature, concurrencies in points.items():
        of = f"T = {temperature:g}"
        header += [f"{of}: τ", *(f"{of}: S, C = {at}" for at in concurrencies)]
    rows = [
        (
            *(told[number] for told in names.values()),
            name,
            str(method),
            *_cells(grid, name, method, points),
        )
        for number, grid in enumerate(group)
        for name in (*grid.data_sets, *([AVERAGE] if len(grid.data_sets) > 1 else []))
        for method in grid.methods
    ]
    averaged = any(len(concurrencies) > 1 for concurrencies in points.values())
    notes = [_ABOUT, *([_AVERAGED] if averaged else [])]
    notes += dict.fromkeys(str(grid.details["note"]) for grid in group if "note" in grid.details)
    return Table(title, tuple(header), tuple(rows), len(names) + 2, tuple(notes))


def _cells(
    grid: SpeedGrid, name: str, method: Method, points: dict[float, list[int]]
) -> Iterator[Cell]:
    for temperature, concurrencies in points.items():
        taus = [_at(grid, grid.tau, name, method, temperature, c) for c in concurrencies]
        known = [tau for tau in taus if tau is not None]
        whole = len(known) == len(taus)
        yield Number(combine(average, *known).estimate()) if whole else NOTHING
        for concurrency in concurrencies:
            s = _at(grid, grid.speedup, name, method, temperature, concurrency)
            yield NOTHING if s is None else Number(s.estimate(), TIMES)


def _at(
    grid: SpeedGrid,
    quantities: Mapping[Place, Quantity],
    name: str,
    method: Method,
    temperature: float,
    concurrency: int,
) -> Quantity | None:
    if name == AVERAGE:
        return over_data_sets(grid, quantities, method, temperature, concurrency)
    return quantities.get(Place(name, method, temperature, concurrency))


def _rates(grid: SpeedGrid, *, reasoning: bool) -> Iterator[Table]:
    """Throughput, and the time per output token, each column over the same data sets."""
    methods = tuple(dict.fromkeys(method for method, _, _ in grid.rates))
    points = sorted({(t, c) for _, t, c in grid.rates})
    told = f", {grid.reasoning}" if reasoning else ""

    def table(what: str, number: Callable[[Rate], float], form: str) -> Table:
        def cell(rate: Rate | None) -> str:
            return NOTHING if rate is None or isnan(number(rate)) else format(number(rate), form)

        rows = [
            (
                "without a drafter" if method is None else str(method),
                *(cell(grid.rates.get((method, *point))) for point in points),
            )
            for method in methods
        ]
        return Table(
            f"{grid.target} in {grid.engine}{told}: {what}{grid.suffix}",
            ("Method", *map(_head, points)),
            tuple(rows),
            notes=(_counted(grid, points),),
        )

    yield table("output tokens a second", lambda rate: rate.throughput, ",.1f")
    yield table("milliseconds per output token", lambda rate: 1000 * rate.per_token, ",.2f")


def _head(point: tuple[float, int]) -> str:
    return f"T = {point[0]:g}, C = {point[1]}"


def _counted(grid: SpeedGrid, points: Sequence[tuple[float, int]]) -> str:
    """Which data sets the numbers are of; told by column where columns differ."""
    told = {(t, c): ", ".join(rate.data_sets) or "none" for (_, t, c), rate in grid.rates.items()}
    sets = set(told.values())
    where = sets.pop() if len(sets) == 1 else "; ".join(f"{_head(p)}: {told[p]}" for p in points)
    return f"Together over the benchmarks that every row of a column has: {where}."
