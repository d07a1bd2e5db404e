"""Stage II's objective a row (Eq. 3 and 10) against a plain version, value and gradient.

The plain version is the formula in float64 with torch's own gradient: log-softmax, a loop over
the retained ids, and the probability of everything else summed over everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.distillation_loss import Retained, RowLoss, row_loss

# Both sides are float64 and add up a few dozen terms of size 1 to 10: about 1e-14 in truth.
EXACT = 1e-10
NEVER = -torch.inf


@dataclass(frozen=True)
class Case:
    """Rows in float64; ``q_other`` is what the teacher leaves for the ids not retained."""

    logits: Tensor
    targets: Tensor
    ids: Tensor
    logp: Tensor

    @property
    def retained(self) -> Retained:
        return Retained(self.ids, self.logp)

    def evaluate(self, alpha: float, dtype: torch.dtype = torch.float64) -> RowLoss:
        retained = Retained(self.ids, self.logp.to(dtype))
        return row_loss(self.logits.to(dtype), self.targets, retained=retained, alpha=alpha)


def plain(case: Case, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy and KL of each row, and the gradient that torch finds for Eq. 3."""
    logits = case.logits.clone().requires_grad_()
    log_p = logits.log_softmax(dim=-1)
    vocabulary = logits.shape[1]
    nll, kl = [], []
    for r in range(len(logits)):
        nll.append(-log_p[r, case.targets[r]])
        retained = case.ids[r].tolist()
        q_other = 1.0
        terms = [log_p.new_zeros(())]
        for v, log_q in zip(retained, case.logp[r].tolist(), strict=True):
            q = float(torch.tensor(log_q, dtype=torch.float64).exp())
            q_other -= q
            if q > 0:  # 0 log 0 = 0
                terms.append(q * (log_q - log_p[r, v]))
        if q_other > 0:
            others = [log_p[r, v] for v in range(vocabulary) if v not in retained]
            log_p_other = torch.stack(others).logsumexp(dim=0)
            terms.append(q_other * (log(q_other) - log_p_other))
        kl.append(torch.stack(terms).sum())
    rows = [(1 - alpha) * a + alpha * b for a, b in zip(nll, kl, strict=True)]
    (gradient,) = torch.autograd.grad(torch.stack(rows).sum(), logits)
    return torch.stack(nll).detach(), torch.stack(kl).detach(), gradient


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Teacher and student drawn apart; some retained probabilities may have rounded to 0."""
    rows, vocabulary = draw(st.integers(1, 4)), draw(st.integers(2, 12))
    k = draw(st.integers(1, vocabulary - 1))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 100_000)))
    sharpness = draw(st.sampled_from([0.1, 1.0, 4.0]))

    def drawn() -> Tensor:
        return torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64) * sharpness

    logp, ids = drawn().log_softmax(dim=-1).topk(k, dim=-1)
    if draw(st.booleans()):
        logp[:, -1] = NEVER
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    return Case(drawn(), targets, ids, logp)


def one_row(logits: list[float], target: int, ids: list[int], q: list[float]) -> Case:
    return Case(
        torch.tensor([logits], dtype=torch.float64),
        torch.tensor([target]),
        torch.tensor([ids]),
        torch.tensor([q], dtype=torch.float64).log(),
    )


def test_one_row_by_hand() -> None:
    # The student holds (1/2, 1/4, 1/8, 1/8); the teacher kept id 0 with 1/4 and id 3 with 1/2,
    # so it left 1/4 for the others, to which the student gives 1/4 + 1/8 = 3/8. Target: id 1.
    case = one_row([log(4), log(2), 0, 0], target=1, ids=[0, 3], q=[1 / 4, 1 / 2])
    loss = case.evaluate(alpha=0.2)
    # -log(1/4) = 1.3862944
    assert float(loss.nll) == pytest.approx(2 * log(2), abs=EXACT)
    # 1/4 log(1/2) + 1/2 log 4 + 1/4 log(2/3) = -0.1732868 + 0.6931472 - 0.1013663 = 0.4184941
    assert float(loss.kl) == pytest.approx(0.4184941, abs=1e-7)
    # Cross-entropy: p - onehot = (1/2, -3/4, 1/8, 1/8).
    # KL: retained p - q = (1/4, -3/8); others p (1 - (1/4)/(3/8)) = p/3 = (1/12, 1/24).
    # 0.8 of the first and 0.2 of the second:
    expected = [0.4 + 0.05, -0.6 + 1 / 60, 0.1 + 1 / 120, 0.1 - 0.075]
    assert loss.gradient[0].tolist() == pytest.approx(expected, abs=EXACT)


@given(cases(), st.sampled_from([0.0, 0.2, 1.0]))
def test_against_the_plain_version(case: Case, alpha: float) -> None:
    loss = case.evaluate(alpha)
    nll, kl, gradient = plain(case, alpha)
    torch.testing.assert_close(loss.nll, nll, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(loss.kl, kl, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(loss.gradient, gradient, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("target", [0, 1, 2, 3], ids=lambda t: f"target {t}")
@pytest.mark.parametrize(
    "q",
    [
        pytest.param([0.5, 0.5], id="nothing left for the others"),
        pytest.param([0.0, 0.0], id="everything left for the others"),
        pytest.param([1.0, 0.0], id="one certain id"),
        pytest.param([0.6, 0.4 + 1e-12], id="a sum that rounds above one"),
        pytest.param([0.3, 0.2], id="half left"),
    ],
)
def test_the_corners(q: list[float], target: int, alpha: float) -> None:
    # Ids 1 and 2 are retained, so targets 1 and 2 are inside the set and 0 and 3 outside.
    case = one_row([0.3, -1.0, 2.0, 0.7], target=target, ids=[1, 2], q=q)
    loss = case.evaluate(alpha)
    nll, kl, gradient = plain(case, alpha)
    assert loss.gradient.isfinite().all()
    torch.testing.assert_close(loss.nll, nll, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(loss.kl, kl, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(loss.gradient, gradient, rtol=EXACT, atol=EXACT)


def test_no_row() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    retained = Retained(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 2))
    for teacher in (None, retained):
        loss = row_loss(torch.zeros(0, 5), none, retained=teacher, alpha=0.2)
        assert (loss.nll.shape, loss.kl.shape, loss.gradient.shape) == ((0,), (0,), (0, 5))


@given(cases())
def test_without_a_teacher_it_is_the_cross_entropy(case: Case) -> None:
    loss = row_loss(case.logits, case.targets)
    expected = torch.nn.functional.cross_entropy(case.logits, case.targets, reduction="none")
    torch.testing.assert_close(loss.nll, expected, rtol=EXACT, atol=EXACT)
    assert torch.equal(loss.kl, torch.zeros_like(loss.nll))
    # and alpha = 0 asks the teacher's distribution for nothing
    same = case.evaluate(alpha=0.0)
    torch.testing.assert_close(loss.gradient, same.gradient, rtol=EXACT, atol=EXACT)


@given(cases(), st.sampled_from([0.0, 0.2, 1.0]), st.floats(-50, 50))
def test_a_gradient_adds_up_to_zero_and_a_common_shift_is_not_seen(
    case: Case, alpha: float, shift: float
) -> None:
    # Softmax does not see a constant added to all logits, so nothing may push in that direction.
    loss = case.evaluate(alpha)
    assert float(loss.gradient.sum(dim=1).abs().max()) < EXACT
    moved = Case(case.logits + shift, case.targets, case.ids, case.logp).evaluate(alpha)
    torch.testing.assert_close(moved.kl, loss.kl, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(moved.gradient, loss.gradient, rtol=EXACT, atol=EXACT)


@given(cases())
def test_the_kl_is_not_negative(case: Case) -> None:
    assert float(case.evaluate(alpha=1.0).kl.min()) > -EXACT


@given(cases())
def test_the_kl_of_a_distribution_to_itself_is_zero(case: Case) -> None:
    k = case.ids.shape[1]
    logp, ids = case.logits.log_softmax(dim=-1).topk(k, dim=-1)
    loss = Case(case.logits, case.targets, ids, logp).evaluate(alpha=1.0)
    assert float(loss.kl.abs().max()) < EXACT
    assert float(loss.gradient.abs().max()) < EXACT


def test_the_order_of_the_retained_ids_does_not_matter() -> None:
    case = one_row([0.3, -1.0, 2.0, 0.7], target=0, ids=[1, 2, 3], q=[0.3, 0.2, 0.1])
    turned = one_row([0.3, -1.0, 2.0, 0.7], target=0, ids=[3, 1, 2], q=[0.1, 0.3, 0.2])
    one, other = case.evaluate(alpha=0.5), turned.evaluate(alpha=0.5)
    torch.testing.assert_close(one.kl, other.kl, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(one.gradient, other.gradient, rtol=EXACT, atol=EXACT)


def test_slicing_rows_of_the_retained_distribution() -> None:
    retained = Retained(torch.tensor([[0], [1], [2]]), torch.tensor([[-1.0], [-2.0], [-3.0]]))
    part = retained[1:]
    assert part.ids.tolist() == [[1], [2]]
    assert part.logp.tolist() == [[-2.0], [-3.0]]


def confident_student(q_other: float, *, gap: float = 22.5) -> Case:
    """A student sure of ids 0 and 1, six others ``gap`` below; a teacher less sure of them.

    With the default gap the student leaves 6 e^-22.5 / (1 + e^-1) = 7e-10 for the others.
    """
    inside = [0.6 * (1 - q_other), 0.4 * (1 - q_other)]
    return one_row([0.0, -1.0] + [-gap] * 6, target=0, ids=[0, 1], q=inside)


def test_float32_keeps_the_value_where_a_subtraction_of_probabilities_loses_it() -> None:
    case = confident_student(q_other=0.25)
    p = case.logits.float().softmax(dim=-1)
    # float32 numbers near 1 are 6e-8 or 1.2e-7 apart: a subtraction says 0 or 85 times too much.
    assert not 0 < float(1 - p[:, :2].sum()) < 5e-8
    exact = plain(case, alpha=1.0)[1]
    # Logits of size 22 carry 2e-6 absolute in float32; so do their logarithms.
    torch.testing.assert_close(
        case.evaluate(1.0, torch.float32).kl.double(), exact, rtol=1e-6, atol=2e-6
    )


@pytest.mark.parametrize("q_other", [1e-4, 1e-2, 0.25])
@pytest.mark.parametrize("gap", [22.5, 60.0, 110.0])
@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_float32_keeps_the_gradient_of_a_confident_student(
    q_other: float, gap: float, alpha: float
) -> None:
    # q_other / p_other reaches 1e9, 1e25 and 1e47 here, yet every gradient lies within [-1, 1]:
    # a retained id has p - q, and q_other is shared out over the six others, which are equal.
    case = confident_student(q_other, gap=gap)
    gradient = case.evaluate(alpha, torch.float32).gradient[0].double()
    p = case.logits.softmax(dim=-1)[0]
    expected = p - alpha * torch.cat([case.logp[0].exp(), p.new_full((6,), q_other / 6)])
    expected[0] -= 1 - alpha
    # 1 - sum q in float32 knows q_other to about 1e-7; logits of size 110 are known to 4e-6.
    torch.testing.assert_close(gradient, expected, rtol=2e-5, atol=1e-6)
