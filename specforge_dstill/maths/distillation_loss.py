"""Stage II's per-position objective and its gradient with respect to the logits.

Cross-entropy on the committed token plus a KL over the retained ids and one category for the
rest (Eq. 3 and 10). Stage I's cross-entropy is the case without a teacher distribution.

Shapes: R rows, V vocabulary, k retained ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specforge_dstill.maths.logits import softmax


@dataclass(frozen=True)
class Retained:
    """The teacher's distribution at each row's committing pass.

    Attributes:
        ids: [R, k] int64, distinct within a row.
        logp: [R, k], their full-softmax log-probabilities; -inf stands for probability 0.
    """

    ids: Tensor
    logp: Tensor

    def __getitem__(self, rows: slice) -> Retained:
        return Retained(ids=self.ids[rows], logp=self.logp[rows])


@dataclass(frozen=True)
class RowLoss:
    """Terms of each row, and the gradient of ``(1-alpha) nll + alpha kl``.

    Attributes:
        nll: [R], ``-log p(target)``.
        kl: [R], the coarsened KL; zeros without a teacher distribution.
        gradient: [R, V], with respect to the logits.
    """

    nll: Tensor
    kl: Tensor
    gradient: Tensor


def row_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    retained: Retained | None = None,
    alpha: float = 0.0,
    out: Tensor | None = None,
) -> RowLoss:
    """Evaluate Eq. 3 and its gradient row by row.

    With ``p = softmax(logits)`` the cross-entropy has gradient ``p - onehot(target)``, and the
    coarsened KL has ``p_v - q_v`` on retained ids and ``p_v (1 - q_other / p_other)`` elsewhere
    (Eq. 10).

    Should the retained probabilities sum to more than 1 by rounding, ``q_other`` counts as 0 and
    the gradient stays as written.

    Args:
        logits: [R, V] float. Changed on the way, and as they were on return.
        targets: [R] int64.
        retained: the teacher's distribution, of k < V ids; None for cross-entropy alone.
        alpha: the KL's share, in [0, 1]; not used when ``retained`` is None.
        out: [R, V], memory for the gradient.

    Returns:
        The rows' terms in nats, not yet weighted by alpha, and the gradient of their weighted sum.
    """
    target_logit = logits.gather(1, targets[:, None])
    if retained is None:
        gradient, normaliser = softmax(logits, out=out)
        nll = (normaliser - target_logit).squeeze(1)
        gradient.scatter_add_(1, targets[:, None], torch.full_like(target_logit, -1.0))
        return RowLoss(nll=nll, kl=torch.zeros_like(nll), gradient=gradient)
    kept = logits.gather(1, retained.ids)
    log_q = retained.logp.to(logits.dtype)
    q = log_q.exp()
    q_other = (1 - q.sum(dim=1, keepdim=True)).clamp_(min=0)
    # The softmax of the rest alone and its own normaliser: 1 - sum p would lose all the digits
    # of p_other near 1, and q_other / p_other would overflow. Here no such ratio is formed:
    # p_v is p_other share_v, so the gradient on the rest is share_v (p_other - alpha q_other).
    share, log_rest = softmax(logits.scatter_(1, retained.ids, -torch.inf), out=out)
    logits.scatter_(1, retained.ids, kept)
    normaliser = torch.logaddexp(log_rest, kept.logsumexp(dim=1, keepdim=True))
    log_p, log_p_other = kept - normaliser, log_rest - normaliser
    kl = _kl_terms(q, log_q, log_p).sum(dim=1, keepdim=True)
    kl += _kl_terms(q_other, q_other.log(), log_p_other)
    gradient = share.mul_(log_p_other.exp() - alpha * q_other)
    gradient.scatter_(1, retained.ids, log_p.exp() - alpha * q)
    gradient.scatter_add_(1, targets[:, None], torch.full_like(target_logit, alpha - 1.0))
    nll = (normaliser - target_logit).squeeze(1)
    return RowLoss(nll=nll, kl=kl.squeeze(1), gradient=gradient)


def _kl_terms(q: Tensor, log_q: Tensor, log_p: Tensor) -> Tensor:
    """``q log(q / p)`` with ``0 log 0 = 0``."""
    return torch.where(q > 0, q * (log_q - log_p), 0.0)
