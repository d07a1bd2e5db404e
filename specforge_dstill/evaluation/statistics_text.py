"""A store's statistics as tables and as JSON values."""

from __future__ import annotations

from math import isnan
from typing import Any

from torch import Tensor

from specforge_dstill.evaluation.trajectory_statistics import TrajectoryStatistics
from specforge_dstill.table import bar, number_text, spark, text_table

_BAR = 24


def position_table(found: TrajectoryStatistics) -> str:
    """A row a position: agreement with the reference, commit pass, confidence and tail.

    Columns of the reference are there only when something is scored.
    """
    header = ["position", "commit pass", "when, 1..K", "confidence", "tail mass"]
    columns = [
        [f"{value:.2f}" for value in found.mean_commit_pass.tolist()],
        [spark(row) for row in found.commits.tolist()],
        [number_text(value, ".3f") for value in found.mean_confidence.tolist()],
        [number_text(value, ".4f") for value in found.mean_tail.tolist()],
    ]
    if found.root_accepted.sum():
        header.append("root agrees %")
        columns.append(_percents(found.root_agreement))
    if found.scored.sum():
        header += ["agrees %", ""]
        columns.append(_percents(found.agreement))
        columns.append([bar(v, width=_BAR) for v in found.agreement.nan_to_num().tolist()])
    rows = [[str(i), *cells] for i, cells in enumerate(zip(*columns, strict=True), start=1)]
    return text_table(header, rows)


def acceptance_table(found: TrajectoryStatistics) -> str:
    """Blocks by the tokens that the reference accepts of their endpoint, anchor included."""
    counts = found.accepted.tolist()
    total, most = sum(counts), max(counts)
    rows = [
        [
            str(length),
            str(count),
            number_text(100 * count / total, ".1f"),
            bar(count / most, width=_BAR),
        ]
        for length, count in enumerate(counts, start=1)
    ]
    return text_table(["accepted", "blocks", "%", ""], rows)


def statistics_json(found: TrajectoryStatistics) -> dict[str, Any]:
    """JSON values; lists by position 1..B-1, by accepted tokens 1..B, and by pass 1..K."""
    scored = bool(found.scored.sum())
    accepted = bool(found.accepted.sum())
    root = bool(found.root_accepted.sum())
    return {
        "blocks": int(found.blocks),
        "mean_commit_pass": _list(found.mean_commit_pass),
        "commits": found.commits.tolist(),
        "mean_confidence": _list(found.mean_confidence),
        "mean_tail_mass": _list(found.mean_tail),
        "scored": found.scored.tolist() if scored else None,
        "agreement": _list(found.agreement) if scored else None,
        "accepted": found.accepted.tolist() if accepted else None,
        "acceptance_length": found.acceptance if accepted else None,
        "root_agreement": _list(found.root_agreement) if root else None,
        "root_acceptance_length": found.root_acceptance if root else None,
    }


def _list(values: Tensor) -> list[float | None]:
    return [None if isnan(value) else value for value in values.tolist()]


def _percents(shares: Tensor) -> list[str]:
    return [number_text(value, ".1f") for value in (100 * shares).tolist()]
