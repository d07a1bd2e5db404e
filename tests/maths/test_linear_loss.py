"""The tiled loss through a frozen head against the same loss with all logits at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.correction import Correction
from specforge_dstill.maths.distillation_loss import Retained
from specforge_dstill.maths.frozen_head import FrozenHead
from specforge_dstill.maths.linear_loss import LinearLoss, TargetRows, linear_loss
from specforge_dstill.maths.target_distance import acceptance

MASK = 3
# float64 throughout; only the order of additions differs.
EXACT = 1e-10


@dataclass(frozen=True)
class Rows:
    """R rows of float64 hidden states, a head, and what the rows should predict."""

    hidden: Tensor
    head: Tensor
    targets: Tensor
    weights: Tensor
    retained: Retained | None
    alpha: float
    bias: Tensor | None = None
    softcap: float | None = None
    correction: Correction | None = None
    target: TargetRows | None = None
    scale: float = 1.0

    def loss(self, hidden: Tensor, *, rows_per_tile: int = 1024) -> LinearLoss:
        return linear_loss(
            hidden,
            FrozenHead(self.head, self.bias, self.softcap),
            self.targets,
            self.weights,
            mask_token_id=MASK,
            retained=self.retained,
            alpha=self.alpha,
            scale=self.scale,
            correction=self.correction,
            target=self.target,
            rows_per_tile=rows_per_tile,
        )

    def value_and_gradient(self, *, rows_per_tile: int = 1024) -> tuple[LinearLoss, Tensor]:
        hidden = self.hidden.clone().requires_grad_()
        loss = self.loss(hidden, rows_per_tile=rows_per_tile)
        (gradient,) = torch.autograd.grad(loss.numerator, hidden)
        return loss, gradient


def drawn_rows(
    rows: int,
    *,
    alpha: float = 0.2,
    teacher: bool = True,
    seed: int = 0,
    vocabulary: int = 9,
    bias: bool = False,
    softcap: float | None = None,
) -> Rows:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    head = normal(vocabulary, 5)
    logp, ids = normal(rows, vocabulary).log_softmax(dim=-1).topk(4, dim=-1)
    return Rows(
        hidden=normal(rows, 5),
        head=head,
        targets=torch.randint(vocabulary, (rows,), generator=generator),
        weights=torch.rand(rows, generator=generator, dtype=torch.float64),
        retained=Retained(ids, logp) if teacher else None,
        alpha=alpha if teacher else 0.0,
        bias=normal(vocabulary) if bias else None,
        softcap=softcap,
    )


def slow_logits(rows: Rows, hidden: Tensor) -> Tensor:
    """Of one row, [V]."""
    logits = rows.head @ hidden
    if rows.bias is not None:
        logits = logits + rows.bias
    return logits if rows.softcap is None else rows.softcap * (logits / rows.softcap).tanh()


def slow(rows: Rows) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Numerator, nll, kl and prediction, one row at a time, with torch's own derivatives."""
    numerator = rows.hidden.sum() * 0
    nlls, kls, predicted = [], [], []
    for r in range(len(rows.hidden)):
        logits = slow_logits(rows, rows.hidden[r])
        if rows.correction is not None:
            logits = logits + rows.correction.weight @ rows.correction.latents[r]
        log_p = logits.log_softmax(dim=-1)
        nll = -log_p[rows.targets[r]]
        kl = log_p.new_zeros(())
        if rows.retained is not None:
            ids, log_q = rows.retained.ids[r], rows.retained.logp[r]
            q_other = 1 - log_q.exp().sum()
            others = [v for v in range(len(log_p)) if v not in ids.tolist()]
            kl = (log_q.exp() * (log_q - log_p[ids])).sum()
            kl = kl + q_other * (q_other.log() - log_p[others].logsumexp(dim=0))
        loss = rows.scale * ((1 - rows.alpha) * nll + rows.alpha * kl)
        if rows.target is not None:
            q = slow_logits(rows, rows.target.states[r]).softmax(dim=-1)
            loss = loss + rows.target.share * (log_p.exp() - q).abs().sum()
        numerator = numerator + rows.weights[r] * loss
        legal = [v for v in range(len(log_p)) if v != MASK]
        predicted.append(max(legal, key=log_p.tolist().__getitem__))
        nlls.append(nll)
        kls.append(kl)
    return numerator, torch.stack(nlls), torch.stack(kls), predicted


def test_two_rows_by_hand() -> None:
    # The head is the identity, so hidden states are logits. Row 0 is uniform over four ids:
    # nll = log 4. Row 1 holds (1/2, 1/4, 1/8, 1/8): nll of id 2 is log 8. Weights 1 and 2.
    hidden = torch.tensor([[0.0, 0, 0, 0], [4.0, 2.0, 1.0, 1.0]], dtype=torch.float64)
    hidden[1] = hidden[1].log()
    rows = Rows(
        hidden=hidden,
        head=torch.eye(4, dtype=torch.float64),
        targets=torch.tensor([1, 2]),
        weights=torch.tensor([1.0, 2.0], dtype=torch.float64),
        retained=None,
        alpha=0.0,
    )
    loss, gradient = rows.value_and_gradient()
    assert loss.numerator.item() == pytest.approx(1.3862944 + 2 * 2.0794415, abs=1e-6)
    assert loss.nll.tolist() == pytest.approx([1.3862944, 2.0794415], abs=1e-6)
    assert loss.kl.tolist() == [0.0, 0.0]
    assert loss.predicted[1] == 0
    # weight * (p - onehot)
    expected = [[0.25, -0.75, 0.25, 0.25], [1.0, 0.5, -1.75, 0.25]]
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64))


# Below, at and above GROUP_SIZE, by whose multiples the largest logit is searched.
VOCABULARIES = (9, 64, 150)


@given(
    st.integers(1, 7),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.booleans(),
    st.sampled_from(VOCABULARIES),
    st.booleans(),
    st.sampled_from([None, 2.0, 30.0]),
    st.integers(0, 10_000),
)
def test_against_the_loop(
    count: int,
    alpha: float,
    teacher: bool,
    vocabulary: int,
    bias: bool,
    softcap: float | None,
    seed: int,
) -> None:
    rows = drawn_rows(
        count,
        alpha=alpha,
        teacher=teacher,
        vocabulary=vocabulary,
        bias=bias,
        softcap=softcap,
        seed=seed,
    )
    loss, gradient = rows.value_and_gradient()
    hidden = rows.hidden.clone().requires_grad_()
    numerator, nll, kl, predicted = slow(replace(rows, hidden=hidden))
    (expected,) = torch.autograd.grad(numerator, hidden)
    torch.testing.assert_close(loss.numerator, numerator.detach(), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(loss.nll, nll.detach(), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(loss.kl, kl.detach(), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(gradient, expected, rtol=EXACT, atol=EXACT)
    assert loss.predicted.tolist() == predicted


@given(
    st.integers(0, 7),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([None, 0.0, 0.9]),
    st.sampled_from([None, 2.0]),
    st.sampled_from(VOCABULARIES),
    st.integers(0, 10_000),
)
def test_a_correction_and_the_targets_rows_against_the_loop(
    count: int,
    rows_per_tile: int,
    teacher: bool,
    share: float | None,
    softcap: float | None,
    vocabulary: int,
    seed: int,
) -> None:
    """DSpark's losses: the gradients of hidden states, latents and weight."""
    rows = drawn_rows(count, teacher=teacher, vocabulary=vocabulary, softcap=softcap, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)

    def leaf(*shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return drawn.requires_grad_()

    leaves = (rows.hidden.requires_grad_(), leaf(count, 3), leaf(vocabulary, 3))
    states = leaf(count, 5).detach()
    rows = replace(
        rows,
        correction=Correction(*leaves[1:]),
        target=None if share is None else TargetRows(states, share),
        scale=0.1,
    )
    loss = rows.loss(rows.hidden, rows_per_tile=rows_per_tile)
    if count == 0:
        assert loss.numerator.item() == 0
        found = torch.autograd.grad(loss.numerator, leaves)
        assert not any(gradient.any() for gradient in found)
        return
    numerator, nll, _, predicted = slow(rows)
    torch.testing.assert_close(loss.numerator, numerator, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(loss.nll, nll.detach(), rtol=EXACT, atol=EXACT)
    assert loss.predicted.tolist() == predicted
    expected = torch.autograd.grad(numerator, leaves)
    for one, other in zip(torch.autograd.grad(loss.numerator, leaves), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT)


def test_the_distance_to_the_target_by_hand() -> None:
    # The head is the identity. p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): L1 is 1/2.
    draft, target = torch.tensor([[2.0, 1, 1]]).log(), torch.tensor([[1.0, 1, 2]]).log()
    loss = linear_loss(
        draft.requires_grad_(),
        FrozenHead(torch.eye(3)),
        torch.tensor([0]),
        torch.ones(1),
        mask_token_id=0,
        scale=0.0,
        target=TargetRows(target, share=1.0),
    )
    assert loss.l1.tolist() == pytest.approx([0.5])
    assert acceptance(loss.l1).tolist() == pytest.approx([0.75])
    # s = (1, 0, -1), its mean under p is 1/4: p (s - 1/4).
    (gradient,) = torch.autograd.grad(loss.numerator, draft)
    assert gradient[0].tolist() == pytest.approx([3 / 8, -1 / 16, -5 / 16], abs=1e-6)


@pytest.mark.parametrize("teacher", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_finite_differences(alpha: float, teacher: bool, softcap: float | None) -> None:
    rows = drawn_rows(3, alpha=alpha, teacher=teacher, seed=4, bias=True, softcap=softcap)
    hidden = rows.hidden.clone().requires_grad_()
    # gradcheck's own tolerances: it compares with differences over steps of 1e-6.
    assert torch.autograd.gradcheck(lambda h: rows.loss(h, rows_per_tile=2).numerator, (hidden,))


@given(st.integers(1, 9), st.integers(1, 10), st.booleans())
def test_the_tile_size_does_not_matter(count: int, rows_per_tile: int, teacher: bool) -> None:
    rows = drawn_rows(count, teacher=teacher, seed=count)
    whole, whole_gradient = rows.value_and_gradient()
    tiled, tiled_gradient = rows.value_and_gradient(rows_per_tile=rows_per_tile)
    for name in ("numerator", "nll", "kl"):
        one, other = getattr(whole, name), getattr(tiled, name)
        torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(whole_gradient, tiled_gradient, rtol=EXACT, atol=EXACT)
    assert torch.equal(whole.predicted, tiled.predicted)


def test_a_capped_row_with_a_bias_by_hand() -> None:
    # Bias artanh(1/2) on id 1 and hidden states of 0: logits capped at 2 are 2 tanh(0) = 0, and
    # 2 tanh(2 artanh(1/2) / 2) = 1. p = (1, e) / (1 + e); the slope at id 1 is 1 - (1/2)^2.
    loss = Rows(
        hidden=torch.zeros(1, 2, dtype=torch.float64),
        head=torch.eye(2, dtype=torch.float64),
        targets=torch.tensor([0]),
        weights=torch.ones(1, dtype=torch.float64),
        retained=None,
        alpha=0.0,
        bias=torch.tensor([0.0, 2 * math.atanh(0.5)], dtype=torch.float64),
        softcap=2.0,
    )
    p = math.e / (1 + math.e)
    hidden = loss.hidden.requires_grad_()
    result = linear_loss(
        hidden,
        FrozenHead(loss.head, loss.bias, loss.softcap),
        loss.targets,
        loss.weights,
        mask_token_id=0,
    )
    (gradient,) = torch.autograd.grad(result.numerator, hidden)
    assert result.nll.item() == pytest.approx(-math.log(1 - p), abs=1e-12)
    assert gradient[0].tolist() == pytest.approx([-p, 0.75 * p], abs=1e-12)


@pytest.mark.parametrize("teacher", [False, True])
def test_no_row(teacher: bool) -> None:
    rows = drawn_rows(0, teacher=teacher)
    loss, gradient = rows.value_and_gradient()
    assert loss.numerator.item() == 0.0
    assert gradient.shape == (0, 5)
    assert (loss.nll.shape, loss.kl.shape, loss.predicted.shape) == ((0,), (0,), (0,))


def test_no_row_still_reaches_the_parameters_before_it() -> None:
    # A rank without rows must take part in the backward pass, with zeros.
    rows = drawn_rows(0)
    layer = torch.nn.Linear(5, 5).double()
    rows.loss(layer(rows.hidden)).numerator.backward()
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad, torch.zeros(5, 5).double())


@pytest.mark.parametrize("scale", [0.0, -1.0, 0.125])
def test_the_upstream_gradient_scales_ours(scale: float) -> None:
    rows = drawn_rows(4)
    _, gradient = rows.value_and_gradient()
    hidden = rows.hidden.clone().requires_grad_()
    (scaled,) = torch.autograd.grad(rows.loss(hidden).numerator * scale, hidden)
    torch.testing.assert_close(scaled, gradient * scale, rtol=EXACT, atol=EXACT)


def test_a_row_of_weight_zero_is_not_seen() -> None:
    rows = drawn_rows(4)
    rows.weights[2] = 0.0
    loss, gradient = rows.value_and_gradient()
    assert torch.equal(gradient[2], torch.zeros_like(gradient[2]))
    rows.targets[2] = (rows.targets[2] + 1) % 9
    assert torch.equal(rows.value_and_gradient()[0].numerator, loss.numerator)


def test_without_gradients() -> None:
    rows = drawn_rows(4)
    expected, _ = rows.value_and_gradient()
    with torch.no_grad():
        loss = rows.loss(rows.hidden.clone().requires_grad_())
    assert not loss.numerator.requires_grad
    assert torch.equal(loss.numerator, expected.numerator.detach())
    assert not rows.loss(rows.hidden).numerator.requires_grad


def test_the_head_is_frozen_and_the_terms_are_detached() -> None:
    rows = drawn_rows(4)
    rows.head.requires_grad_()
    hidden = rows.hidden.clone().requires_grad_()
    loss = rows.loss(hidden)
    loss.numerator.backward()
    assert hidden.grad is not None
    assert rows.head.grad is None
    assert not loss.nll.requires_grad
    assert not loss.kl.requires_grad


def test_the_mask_token_is_never_predicted() -> None:
    rows = drawn_rows(20)
    # Every row's best id by far is the mask token; what is predicted is the best of the others.
    rows.head[MASK] = 0.0
    before = rows.loss(rows.hidden).predicted
    leaning = torch.cat([rows.hidden, rows.hidden.new_full((20, 1), 1.0)], dim=1)
    column = torch.zeros(9, 1, dtype=torch.float64)
    column[MASK] = 50.0
    biased = replace(rows, head=torch.cat([rows.head, column], dim=1))
    loss = biased.loss(leaning)
    assert (loss.predicted != MASK).all()
    assert torch.equal(loss.predicted, before)
    # It keeps its share of the softmax: the targets, none of them the mask, are improbable.
    legal = rows.targets != MASK
    assert float(loss.nll[legal].min()) > 30


def test_bfloat16() -> None:
    rows = drawn_rows(64, seed=5)
    hidden, head = rows.hidden.bfloat16(), rows.head.bfloat16()
    assert rows.retained is not None
    small = Rows(
        hidden=hidden,
        head=head,
        targets=rows.targets,
        weights=rows.weights.float(),
        retained=Retained(rows.retained.ids, rows.retained.logp.float()),
        alpha=rows.alpha,
    )
    # The reference is float64 arithmetic on the same rounded inputs, so that only the work
    # between them and the loss differs.
    exact = replace(rows, hidden=hidden.double(), head=head.double())
    loss, gradient = small.value_and_gradient(rows_per_tile=10)
    reference, expected = exact.value_and_gradient()
    assert loss.nll.dtype == loss.numerator.dtype == torch.float32
    assert gradient.dtype == torch.bfloat16
    # bfloat16 rounds to 1 part in 2^9. A logit is a sum of five products, rounded at the end
    # (and, by some kernels, on the way): allow two roundings of the largest logit, twice in
    # nll = log sum exp - logit.
    logit_error = 2 * float((exact.hidden @ exact.head.T).abs().max()) * 2**-9
    assert float((loss.nll - reference.nll).abs().max()) < 2 * logit_error
    assert float((loss.kl - reference.kl).abs().max()) < 2 * logit_error
    # A row's gradient is g @ head with sum |g| <= 4 (a row of p - onehot has 2, of the KL 2).
    # g moves by a share 2 * logit_error and is rounded, and so is the product.
    bound = 4 * float(exact.head.abs().max()) * (2 * logit_error + 2 * 2**-9)
    assert float((gradient.double() - expected).abs().max()) < bound


def test_autocast_changes_nothing() -> None:
    rows = drawn_rows(12, seed=2)
    plain, expected = rows.value_and_gradient()
    with torch.autocast("cpu", torch.bfloat16):
        loss, gradient = rows.value_and_gradient()
    assert torch.equal(loss.numerator, plain.numerator)
    assert torch.equal(gradient, expected)


def test_impossible_requests_are_refused() -> None:
    rows = drawn_rows(3)
    with pytest.raises(ValueError, match="rows_per_tile"):
        rows.loss(rows.hidden, rows_per_tile=0)
    alone = replace(rows, retained=None)
    with pytest.raises(ValueError, match="alpha needs the teacher's distribution"):
        alone.loss(rows.hidden)
    with pytest.raises(ValueError, match="alpha needs"):
        replace(drawn_rows(0), retained=None).loss(rows.hidden[:0])
    assert rows.retained is not None
    every = torch.arange(len(rows.head)).expand(3, -1)
    whole = replace(rows, retained=Retained(every, torch.zeros(every.shape)))
    with pytest.raises(ValueError, match="leave an id out"):
        whole.loss(rows.hidden)
