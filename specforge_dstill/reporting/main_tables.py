"""The shapes of the paper's Tables 1 and 4: methods by row, benchmarks by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from specforge_dstill.evaluation.intervals import Quantity
from specforge_dstill.reporting.quantities import Quantities
from specforge_dstill.reporting.settings import Method, Setting
from specforge_dstill.reporting.tables import Cell, Number, Table
from specforge_dstill.table import NOTHING

TIMES, AVERAGE = "×", "Average"
_ABOUT_S = (
    "S is the time per output token of the target alone over that with the drafter, measured in "
    "turn on the same prompts. Average: unweighted over benchmarks."
)
_ABOUT_RECOVERY = (
    "Recovery: the part of the teacher's multi-pass gain that the student's one pass keeps "
    "(Eq. 13)."
)
_RECOVERY_OF_RUNS = (
    "Of several runs it is formed from τ averaged over them; {low, high} is of each run's own "
    "recovery, and missing where a run's teacher does not gain."
)


def name_columns(settings: Sequence[Setting]) -> tuple[str, ...]:
    """The columns that tell settings apart: what differs between them, and always the target."""
    columns = ("Setting",) if any(setting.letter for setting in settings) else ()
    varying = [
        name
        for name, values in (
            ("Temperature", {s.temperature for s in settings}),
            ("Reasoning", {s.reasoning for s in settings}),
        )
        if len(values) > 1
    ]
    return (*columns, "Target", *varying)


def name_cells(setting: Setting, columns: Sequence[str]) -> tuple[str, ...]:
    """A setting's cells in :func:`name_columns`."""
    values = {
        "Setting": setting.letter,
        "Target": setting.target,
        "Temperature": f"{setting.temperature:g}",
        "Reasoning": setting.reasoning,
    }
    return tuple(values[column] for column in columns)


def table_1(all_quantities: Sequence[Quantities]) -> Iterator[Table]:
    """S and tau by benchmark, where speed was measured."""

    def row(quantities: Quantities, method: Method) -> tuple[Cell, ...] | None:
        if not quantities.setting.has_speed(method):
            return None
        pairs = [
            (quantities.speedup(method, name), quantities.tau(method, name))
            for name in quantities.setting.data_sets
        ]
        if len(pairs) > 1:
            pairs.append((quantities.average_speedup(method), quantities.average_tau(method)))
        return (
            str(method),
            _millions(quantities.setting.parameters(method)),
            *(cell for speed, tau in pairs for cell in (_times(speed), _plain(tau))),
        )

    for group in _by_data_sets(all_quantities):
        sets = columns_of(group[0].setting)
        yield from _table(
            "Speed-up S and acceptance length τ (Table 1)",
            ("Method", "Params (M)", *(f"{name} {what}" for name in sets for what in ("S", "τ"))),
            group,
            row,
            names=2,
            notes=(_ABOUT_S,),
        )


def table_4(all_quantities: Sequence[Quantities]) -> Iterator[Table]:
    """Tau by benchmark for every drafter and number of passes, and recovery (Eq. 13)."""
    recovers = any(q.recovery(m) for q in all_quantities for m in q.setting.methods)

    def row(quantities: Quantities, method: Method) -> tuple[Cell, ...]:
        found = [quantities.tau(method, name) for name in quantities.setting.data_sets]
        if len(found) > 1:
            found.append(quantities.average_tau(method))
        recovery = quantities.recovery(method)
        last: Cell = NOTHING if recovery is None else Number(recovery)
        return (
            method.drafter,
            str(method.steps),
            *map(_plain, found),
            *([last] if recovers else []),
        )

    about = "τ is the mean number of tokens a round, the target's own included (1 + accepted)."
    notes = [about]
    if recovers:
        several = any(len(q.setting.reports) > 1 for q in all_quantities)
        notes.append(f"{_ABOUT_RECOVERY} {_RECOVERY_OF_RUNS}" if several else _ABOUT_RECOVERY)
    for group in _by_data_sets(all_quantities):
        yield from _table(
            "Acceptance length by drafter and denoising steps (Table 4)",
            (
                *("Drafter", "Steps", *columns_of(group[0].setting)),
                *(["Recovery (%)"] if recovers else []),
            ),
            group,
            row,
            names=2,
            notes=tuple(notes),
        )


def columns_of(setting: Setting) -> tuple[str, ...]:
    """The data sets and, if there are several, their average."""
    several = len(setting.data_sets) > 1
    return (*setting.data_sets, *([AVERAGE] if several else []))


def _table(
    title: str,
    header: tuple[str, ...],
    group: Sequence[Quantities],
    row: Callable[[Quantities, Method], tuple[Cell, ...] | None],
    *,
    names: int,
    notes: tuple[str, ...],
) -> Iterator[Table]:
    """A table with a row for each setting and method that has one; none if there is no row."""
    found = [
        (quantities.setting, cells)
        for quantities in group
        for method in quantities.setting.methods
        if (cells := row(quantities, method)) is not None
    ]
    if found:
        columns = name_columns([setting for setting, _ in found])
        rows = tuple((*name_cells(setting, columns), *cells) for setting, cells in found)
        yield Table(title, (*columns, *header), rows, len(columns) + names, notes)


def _by_data_sets(all_quantities: Sequence[Quantities]) -> list[list[Quantities]]:
    """Settings with the same columns share a table."""
    groups: dict[tuple[str, ...], list[Quantities]] = {}
    for quantities in all_quantities:
        groups.setdefault(quantities.setting.data_sets, []).append(quantities)
    return list(groups.values())


def _millions(parameters: int | None) -> str:
    """Three digits, as in the paper where a drafter is large."""
    if parameters is None:
        return NOTHING
    count = parameters / 1e6
    return f"{count:.0f}" if count >= 100 else f"{count:.3g}"


def _plain(quantity: Quantity) -> Number:
    return Number(quantity.estimate())


def _times(quantity: Quantity) -> Number:
    return Number(quantity.estimate(), TIMES)
