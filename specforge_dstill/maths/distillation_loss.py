"""Stage II's per-position objective and its gradient with respect to the logits.

Cross-entropy on the committed token plus a KL over the retained ids and one category for the
rest (Eq. 3 and 10). Stage I's cross-entropy is the case without a teacher distribution.

Shapes: R rows, V vocabulary, k retained ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
    logits: Tensor, targets: Tensor, *, retained: Retained | None = None, alpha: float = 0.0
) -> RowLoss:
    """Evaluate Eq. 3 and its gradient row by row.

    With ``p = softmax(logits)`` the cross-entropy has gradient ``p - onehot(target)``, and the
    coarsened KL has ``p_v - q_v`` on retained ids and ``p_v (1 - q_other / p_other)`` elsewhere
    (Eq. 10).

    Args:
        logits: [R, V] float.
        targets: [R] int64.
        retained: the teacher's distribution; None leaves the cross-entropy alone.
        alpha: the KL's share, in [0, 1].
    """
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    gradient = (logits - normaliser).exp_()
    nll = (normaliser - logits.gather(1, targets[:, None])).squeeze(1)
    if retained is None:
        gradient.scatter_add_(1, targets[:, None], torch.full_like(nll, -1.0)[:, None])
        return RowLoss(nll=nll, kl=torch.zeros_like(nll), gradient=gradient)
    log_p = logits.gather(1, retained.ids) - normaliser
    log_q = retained.logp.to(logits.dtype)
    q = log_q.exp()
    q_other = (1 - q.sum(dim=1)).clamp_(min=0)
    # The rest's mass from its own logits: 1 - sum p would lose all its digits near 1.
    rest = logits.scatter(1, retained.ids, -torch.inf)
    log_rest = rest.logsumexp(dim=-1)
    log_p_other = log_rest - normaliser.squeeze(1)
    kl = _kl_terms(q, log_q, log_p).sum(dim=1) + _kl_terms(q_other, q_other.log(), log_p_other)
    # p_v q_other / p_other is q_other shared out over the rest as the student shares it. Formed
    # so, no ratio of small numbers enters the gradient.
    shared = rest.add_((q_other.log() - log_rest)[:, None]).exp_()
    gradient.sub_(shared, alpha=alpha)
    gradient.scatter_add_(1, retained.ids, -alpha * q)
    gradient.scatter_add_(1, targets[:, None], torch.full_like(nll, alpha - 1.0)[:, None])
    return RowLoss(nll=nll, kl=kl, gradient=gradient)


def _kl_terms(q: Tensor, log_q: Tensor, log_p: Tensor) -> Tensor:
    """``q log(q / p)`` with ``0 log 0 = 0``."""
    return torch.where(q > 0, q * (log_q - log_p), 0.0)
