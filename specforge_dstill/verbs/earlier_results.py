"""Results that ``evaluate`` finds where it would write: what it does not measure anew is kept."""

from __future__ import annotations

from pathlib import Path

from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.report import report_from_json
from specforge_dstill.files import reading
from specforge_dstill.verbs.decode_ways import way_name
from specforge_dstill.verbs.evaluation_plan import EvaluationPlan


def check_nothing_lost(results: Path, plan: EvaluationPlan) -> None:
    """Refuse to write over what the new results would not have.

    Raises:
        UserError: the file holds drafters, numbers of passes or data sets that are not the plan's,
            or is no evaluation's results.
    """
    if not results.exists():
        return
    try:
        with reading(results):
            before = report_from_json(results.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(
            f"{results}: {error}; name another --output, or write over it with --overwrite"
        ) from None
    held = {way_name(score.drafter, score.steps) for score in before.scores}
    new = {way_name(one.name, steps) for one, passes in plan.drafters for steps in passes}
    lost = [*sorted(held - new), *sorted({*before.data_sets} - {*plan.data_sets})]
    if lost:
        raise UserError(
            f"{results}: holds {', '.join(lost)}, which this command does not measure and would be "
            "lost; name another --output, or write over it with --overwrite"
        )
