"""What ``evaluate --decode`` refuses before anything heavy is loaded."""

from __future__ import annotations

from specforge_dstill.data.draft_config import tells_confidence
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.rules import Comparison, Rejection, Rule
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.maths.verification import check_rejection
from specforge_dstill.verbs.evaluation_plan import EvaluationPlan

REJECT = "reject"


def sampling_of(plan: EvaluationPlan) -> Sampling:
    """UserError for a temperature, top-k or top-p out of bounds."""
    args = plan.args
    try:
        return Sampling(args.temperature, args.top_k, args.top_p)
    except ValueError as error:
        raise UserError(f"--decode: {error}") from None


def rule_of(plan: EvaluationPlan, sampling: Sampling) -> Rule:
    """UserError for ``--rule reject`` where probabilities are not known."""
    if plan.args.rule != REJECT:
        return Comparison(sampling)
    try:
        rule = Rejection(sampling)
    except ValueError as error:
        raise UserError(f"--rule {REJECT}: {error}") from None
    for chosen, passes in plan.drafters:
        try:
            check_rejection(steps=max(passes))
        except ValueError as error:
            raise UserError(f"--rule {REJECT}: {chosen.name}: {error}; or give --steps 1") from None
    return rule


def check_confidence(plan: EvaluationPlan) -> None:
    """UserError for a ``--min-confidence`` that the drafters cannot be held to."""
    least = plan.args.min_confidence
    if least is None:
        return
    if not 0 <= least <= 1:
        raise UserError(f"--min-confidence {least:g}: a probability lies between 0 and 1")
    if any(steps > 1 for _, passes in plan.drafters for steps in passes):
        raise UserError("--min-confidence is for drafts of one pass; give --steps 1")
    if not tells_confidence(plan.capture.draft_config):
        raise UserError(
            "--min-confidence needs drafters with a confidence head; the draft config names none "
            "(dflash_config.enable_confidence_head, of DSparkDraftModel)"
        )
