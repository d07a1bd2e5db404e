"""Algorithm 1 line by line, against the batched rollout."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.chain import Chain
from specforge_dstill.maths.reveal_schedule import commit_counts
from specforge_dstill.maths.rollout import CommitRule, rollout
from specforge_dstill.maths.trajectory import Trajectory, masked_at, state_at
from tests.maths.generators import seeded

# Log-probabilities are float32; the loops below work in float64. A handful of roundings of 6e-8
# on logits of size 10.
CLOSE = 1e-5


@dataclass
class RandomDrafter:
    """A drafter whose prediction at a position depends on every token of the block.

    Attributes:
        inputs: every input the ``hidden`` callable was given, in order.
        head_rows: the number of rows of each call of the head.
        chained: whether the tokens before a position correct its logits: all of them, as with a
            recurrent Markov head.
    """

    block_size: int
    vocabulary: int
    seed: int
    inputs: list[Tensor] = field(default_factory=list)
    head_rows: list[int] = field(default_factory=list)
    chained: bool = False

    def __post_init__(self) -> None:
        generator = seeded(self.seed)
        self.embedding = torch.randn(self.vocabulary, 6, generator=generator)
        self.position = torch.randn(self.block_size, 6, generator=generator)
        self.weight = torch.randn(self.vocabulary, 6, generator=generator) * 2

    def hidden(self, blocks: Tensor) -> Tensor:
        self.inputs.append(blocks.clone())
        states = self.embedding[blocks]
        mixed = states + states.mean(dim=1, keepdim=True) * self.block_size**0.5 + self.position
        return mixed.sin()

    def head(self, rows: Tensor) -> Tensor:
        self.head_rows.append(len(rows))
        return rows @ self.weight.T

    @property
    def chain(self) -> Chain | None:
        def step(
            tokens: Tensor, states: Tensor, memory: Tensor | None
        ) -> tuple[Tensor, Tensor | None]:
            memory = torch.zeros(len(tokens), 6) if memory is None else memory
            memory = (memory + 2 * self.embedding[tokens] + states).cos()
            return memory, memory

        return Chain(3 * self.weight, step) if self.chained else None


@dataclass(frozen=True)
class TableDrafter:
    """A drafter that knows a distribution for each position and ignores the block."""

    probabilities: list[list[float]]
    chain: Chain | None = None

    def hidden(self, blocks: Tensor) -> Tensor:
        return torch.eye(blocks.shape[1]).expand(len(blocks), -1, -1)

    def head(self, rows: Tensor) -> Tensor:
        return rows @ torch.tensor(self.probabilities).log()


def run(
    drafter: RandomDrafter | TableDrafter,
    anchors: list[int],
    rule: CommitRule,
    *,
    block_size: int,
    steps: int,
    generator: torch.Generator | None = None,
    rows_per_tile: int = 1024,
) -> Trajectory:
    return rollout(
        drafter.hidden,
        drafter.head,
        torch.tensor(anchors, dtype=torch.int64),
        block_size=block_size,
        steps=steps,
        rule=rule,
        chain=drafter.chain,
        generator=generator,
        rows_per_tile=rows_per_tile,
    )


# --- by hand -------------------------------------------------------------------------------

MASK = 3
#          ids:   0     1     2    mask
UNUSED = [0.25, 0.25, 0.25, 0.25]
HAND = TableDrafter(
    [
        UNUSED,
        [0.60, 0.30, 0.06, 0.04],
        [0.10, 0.80, 0.06, 0.04],
        [0.80, 0.10, 0.06, 0.04],
        [0.20, 0.16, 0.54, 0.10],
    ]
)


def test_four_positions_in_two_passes_by_hand() -> None:
    # ceil(4/2) = 2, then 2. The two confidences of 0.80 come first, then 0.60 and 0.54.
    found = run(HAND, [2], CommitRule(mask_token_id=MASK, top_k=2), block_size=5, steps=2)
    assert found.endpoint.tolist() == [[2, 0, 1, 0, 2]]
    assert found.commit_pass.tolist() == [[0, 2, 1, 1, 2]]
    assert found.top_ids.tolist() == [[[[0, 1], [1, 0], [0, 1], [2, 0]]]]
    expected = torch.tensor([[[[0.6, 0.3], [0.8, 0.1], [0.8, 0.1], [0.54, 0.2]]]]).log()
    torch.testing.assert_close(found.top_logp, expected, rtol=0, atol=CLOSE)


def test_a_full_record_by_hand() -> None:
    rule = CommitRule(mask_token_id=MASK, top_k=1, every_pass=True)
    found = run(HAND, [2], rule, block_size=5, steps=2)
    # Pass 1 sees all four positions; pass 2 sees positions 1 and 4, the others are committed.
    assert found.top_ids[0, :, :, 0].tolist() == [[0, 1, 0, 2], [0, -1, -1, 2]]
    never = -torch.inf
    expected = torch.tensor(
        [[log(0.6), log(0.8), log(0.8), log(0.54)], [log(0.6), never, never, log(0.54)]]
    )
    torch.testing.assert_close(found.top_logp[0, :, :, 0], expected, rtol=0, atol=CLOSE)


def test_the_lower_position_wins_a_tie() -> None:
    # Three equal confidences and n = 2, 1: positions 1 and 2 first, though 3 is as sure.
    sure = [[0.8, 0.1, 0.06, 0.04], [0.1, 0.8, 0.06, 0.04], [0.06, 0.1, 0.8, 0.04]]
    table = TableDrafter([UNUSED, *sure])
    found = run(table, [0], CommitRule(mask_token_id=MASK, top_k=1), block_size=4, steps=2)
    assert found.commit_pass.tolist() == [[0, 1, 1, 2]]


def test_equal_confidences_are_committed_from_left_to_right() -> None:
    # B = 16, K = 8: two at a time, one in the last pass.
    table = TableDrafter([[0.5, 0.3, 0.1, 0.1]] * 16)
    found = run(table, [0, 1], CommitRule(mask_token_id=MASK, top_k=0), block_size=16, steps=8)
    order = [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8]
    assert found.commit_pass.tolist() == [order, order]


def test_the_mask_token_is_not_committed_but_keeps_its_share() -> None:
    # At position 1 the mask token holds 0.9. The best legal token has 0.06: that is committed,
    # recorded with its full-softmax probability (not 0.6, its share of the legal tokens), and
    # it is the confidence that loses against 0.4 at position 2.
    table = TableDrafter([UNUSED, [0.04, 0.06, 0.0001, 0.8999], [0.4, 0.35, 0.15, 0.1]])
    rule = CommitRule(mask_token_id=MASK, top_k=2)
    found = run(table, [0], rule, block_size=3, steps=2)
    assert found.endpoint.tolist() == [[0, 1, 0]]
    assert found.commit_pass.tolist() == [[0, 2, 1]]
    assert found.top_ids[0, 0].tolist() == [[1, 0], [0, 1]]
    expected = torch.tensor([[0.06, 0.04], [0.4, 0.35]]).log()
    torch.testing.assert_close(found.top_logp[0, 0], expected, rtol=0, atol=CLOSE)


# --- against the loop ----------------------------------------------------------------------


@dataclass(frozen=True)
class SlowBlock:
    """Algorithm 1's output for one block; ``records[t][i]`` are (id, log-probability) pairs."""

    endpoint: list[int]
    commit_pass: list[int]
    records: dict[int, dict[int, list[tuple[int, float]]]]


def slow_rollout(
    drafter: RandomDrafter, anchor: int, *, block_size: int, steps: int, mask: int, top_k: int
) -> SlowBlock:
    """Algorithm 1, a line at a time; its line numbers are on the right."""
    x = [anchor] + [mask] * (block_size - 1)  # 1
    committed, kappa = {0}, {0: 0}  # 2
    records: dict[int, dict[int, list[tuple[int, float]]]] = {}
    for t in range(1, steps + 1):  # 3
        open_positions = [i for i in range(1, block_size) if i not in committed]  # 4
        states = drafter.hidden(torch.tensor([x]))[0]
        logits = drafter.head(states).double().tolist()  # 5
        filled, memory = list(x), None
        confidence: dict[int, float] = {}
        best: dict[int, int] = {}
        records[t] = {}
        for i in range(1, block_size):
            if drafter.chain is not None:
                before = torch.tensor([filled[i - 1]])
                latent, memory = drafter.chain.step(before, states[i : i + 1], memory)
                bias = (latent @ drafter.chain.weight.T)[0].double().tolist()
                logits[i] = [value + more for value, more in zip(logits[i], bias, strict=True)]
            if i not in open_positions:
                continue
            normaliser = sum(exp(value) for value in logits[i])
            log_p = [value - log(normaliser) for value in logits[i]]  # 6
            legal = [v for v in range(len(log_p)) if v != mask]
            legal.sort(key=lambda v: -log_p[v])
            best[i] = filled[i] = legal[0]
            confidence[i] = exp(log_p[legal[0]])  # 7
            records[t][i] = [(v, log_p[v]) for v in legal[:top_k]]  # 8, 9
        count = -(-(block_size - len(committed)) // (steps - t + 1))  # 10
        chosen = sorted(open_positions, key=lambda i: (-confidence[i], i))[:count]  # 11
        x = list(x)  # 12
        for i in chosen:
            x[i] = best[i]  # 13
            kappa[i] = t  # 14
        committed |= set(chosen)  # 15
    return SlowBlock(x, [kappa[i] for i in range(block_size)], records)  # 17, 18


@dataclass(frozen=True)
class Setting:
    """A drafter and everything a rollout is asked for."""

    seed: int
    anchors: list[int]
    block_size: int
    steps: int
    rule: CommitRule
    rows_per_tile: int
    chained: bool

    def drafter(self) -> RandomDrafter:
        return RandomDrafter(self.block_size, vocabulary=11, seed=self.seed, chained=self.chained)

    def run(self, drafter: RandomDrafter, *, rows_per_tile: int | None = None) -> Trajectory:
        return run(
            drafter,
            self.anchors,
            self.rule,
            block_size=self.block_size,
            steps=self.steps,
            generator=seeded(self.seed),
            rows_per_tile=rows_per_tile or self.rows_per_tile,
        )


@st.composite
def settings_of_a_rollout(draw: st.DrawFn, *, sampled: bool = False) -> Setting:
    block_size = draw(st.integers(2, 10))
    # The mask token is one of eleven random ids, so that it is often the most probable one.
    rule = CommitRule(
        mask_token_id=draw(st.integers(0, 10)),
        top_k=draw(st.integers(0, 5)),
        every_pass=draw(st.booleans()),
        temperature=draw(st.sampled_from([0.0, 1.3])) if sampled else 0.0,
    )
    return Setting(
        seed=draw(st.integers(0, 10_000)),
        anchors=draw(st.lists(st.integers(0, 10), max_size=5)),
        block_size=block_size,
        steps=draw(st.integers(1, block_size - 1)),
        rule=rule,
        rows_per_tile=draw(st.integers(1, 40)),
        chained=draw(st.booleans()),
    )


@given(settings_of_a_rollout())
def test_against_algorithm_1(setting: Setting) -> None:
    rule, block_size = setting.rule, setting.block_size
    found = setting.run(setting.drafter())
    recorded = setting.steps if rule.every_pass else 1
    shape = (len(setting.anchors), recorded, block_size - 1, rule.top_k)
    assert found.top_ids.shape == found.top_logp.shape == shape
    for n, anchor in enumerate(setting.anchors):
        expected = slow_rollout(
            setting.drafter(),
            anchor,
            block_size=block_size,
            steps=setting.steps,
            mask=rule.mask_token_id,
            top_k=rule.top_k,
        )
        assert found.endpoint[n].tolist() == expected.endpoint
        assert found.commit_pass[n].tolist() == expected.commit_pass
        for i in range(1, block_size):
            committing = expected.commit_pass[i]
            passes = range(1, setting.steps + 1) if rule.every_pass else [committing]
            for slot, t in enumerate(passes):
                ids = found.top_ids[n, slot, i - 1].tolist()
                logp = found.top_logp[n, slot, i - 1].tolist()
                if t > committing:
                    assert ids == [-1] * rule.top_k
                    assert logp == [-torch.inf] * rule.top_k
                    continue
                kept = expected.records[t][i]
                assert ids == [v for v, _ in kept]
                assert logp == pytest.approx([value for _, value in kept], abs=CLOSE)


@given(settings_of_a_rollout(sampled=True))
def test_every_input_the_drafter_saw_is_rebuilt_from_the_record(setting: Setting) -> None:
    # What makes Stage II possible: endpoint and commit passes are all that Eq. 8 needs.
    drafter = setting.drafter()
    found = setting.run(drafter)
    assert len(drafter.inputs) == setting.steps
    for t, seen in enumerate(drafter.inputs, start=1):
        passes = torch.full((len(setting.anchors),), t)
        rebuilt = state_at(
            found.endpoint, found.commit_pass, passes, mask_token_id=setting.rule.mask_token_id
        )
        # A block that starts at the mask token shows it at the anchor, like any other anchor.
        assert torch.equal(rebuilt, seen), t


@given(settings_of_a_rollout(sampled=True))
def test_a_committed_token_never_changes(setting: Setting) -> None:
    drafter = setting.drafter()
    found = setting.run(drafter)
    mask = setting.rule.mask_token_id
    states = [*drafter.inputs, found.endpoint]
    for before, after in pairwise(states):
        committed = before[:, 1:] != mask
        assert torch.equal(after[:, 1:][committed], before[:, 1:][committed])
    assert (found.endpoint[:, 1:] != mask).all()
    assert (found.top_ids != mask).all()
    assert found.endpoint[:, 0].tolist() == setting.anchors


@given(settings_of_a_rollout(sampled=True))
def test_each_pass_commits_what_the_schedule_asks(setting: Setting) -> None:
    found = setting.run(setting.drafter())
    counts = commit_counts(setting.block_size, setting.steps)
    for t, count in enumerate(counts, start=1):
        assert ((found.commit_pass == t).sum(dim=1) == count).all()
    assert (found.commit_pass[:, 0] == 0).all()


@given(settings_of_a_rollout(sampled=True))
def test_the_tile_size_does_not_matter_and_bounds_the_rows_of_the_head(setting: Setting) -> None:
    drafter = setting.drafter()
    tiled = setting.run(drafter)
    whole = setting.run(setting.drafter(), rows_per_tile=1024)
    assert torch.equal(tiled.endpoint, whole.endpoint)
    assert torch.equal(tiled.commit_pass, whole.commit_pass)
    assert torch.equal(tiled.top_ids, whole.top_ids)
    torch.testing.assert_close(tiled.top_logp, whole.top_logp, rtol=0, atol=CLOSE)
    # The head sees each masked position once a pass, and no other.
    most = max(setting.rows_per_tile, setting.block_size - 1)
    assert all(rows <= most for rows in drafter.head_rows)
    count = len(setting.anchors)
    seen = sum(
        int(masked_at(whole.commit_pass, torch.full((count,), t)).sum())
        for t in range(1, setting.steps + 1)
    )
    assert sum(drafter.head_rows) == seen


@given(settings_of_a_rollout(), st.integers(1, 5))
def test_the_committing_pass_of_a_full_record_is_the_short_record(
    setting: Setting, top_k: int
) -> None:
    def record(*, every_pass: bool) -> tuple[Tensor, Tensor]:
        rule = CommitRule(setting.rule.mask_token_id, top_k=top_k, every_pass=every_pass)
        return run(
            setting.drafter(),
            setting.anchors,
            rule,
            block_size=setting.block_size,
            steps=setting.steps,
        ).committing()

    assert all(map(torch.equal, record(every_pass=True), record(every_pass=False)))


@given(settings_of_a_rollout())
def test_the_committed_token_is_the_first_recorded_one(setting: Setting) -> None:
    if setting.rule.top_k == 0:
        return
    found = setting.run(setting.drafter())
    ids, logp = found.committing()
    assert torch.equal(ids[..., 0], found.endpoint[:, 1:])
    assert (logp.diff(dim=-1) <= 0).all()
    # Full-softmax probabilities: what is retained never exceeds 1, up to rounding.
    assert (logp.exp().sum(dim=-1) <= 1 + CLOSE).all()


# --- nothing to do, nothing to record --------------------------------------------------------


@pytest.mark.parametrize("every_pass", [False, True])
def test_no_block(every_pass: bool) -> None:
    drafter = RandomDrafter(6, vocabulary=11, seed=0)
    rule = CommitRule(mask_token_id=10, top_k=3, every_pass=every_pass)
    found = run(drafter, [], rule, block_size=6, steps=2)
    assert found.endpoint.shape == found.commit_pass.shape == (0, 6)
    assert found.top_ids.shape == (0, 2 if every_pass else 1, 5, 3)
    assert drafter.head_rows == []


@pytest.mark.parametrize("every_pass", [False, True])
def test_recording_nothing_changes_nothing_else(every_pass: bool) -> None:
    def refine(top_k: int) -> Trajectory:
        drafter = RandomDrafter(8, vocabulary=11, seed=1)
        rule = CommitRule(mask_token_id=10, top_k=top_k, every_pass=every_pass)
        return run(drafter, [1, 2, 3], rule, block_size=8, steps=3)

    none, three = refine(0), refine(3)
    assert torch.equal(none.endpoint, three.endpoint)
    assert torch.equal(none.commit_pass, three.commit_pass)
    assert none.top_ids.shape == (3, 3 if every_pass else 1, 7, 0)
    assert [part.shape for part in none.committing()] == [(3, 7, 0)] * 2


# --- sampled commitment ----------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampled_tokens_follow_the_tempered_distribution(temperature: float) -> None:
    probabilities = [0.5, 0.2, 0.1, 0.2]  # the last is the mask token's
    count = 20_000
    rule = CommitRule(mask_token_id=MASK, top_k=3, temperature=temperature)
    found = run(
        TableDrafter([UNUSED, probabilities]),
        [0] * count,
        rule,
        block_size=2,
        steps=1,
        generator=seeded(1),
    )
    drawn = found.endpoint[:, 1].bincount(minlength=4)
    assert drawn[MASK] == 0
    tempered = [p ** (1 / temperature) for p in probabilities[:MASK]]
    for v, weight in enumerate(tempered):
        share = weight / sum(tempered)
        # Five standard deviations of a binomial count.
        assert abs(float(drawn[v]) - count * share) < 5 * sqrt(count * share * (1 - share)), v
    # What is recorded is the distribution itself: not tempered, not renormalised.
    expected = torch.tensor(probabilities[:MASK]).log().expand(count, 1, 1, 3)
    torch.testing.assert_close(found.top_logp, expected, rtol=0, atol=CLOSE)


def test_sampling_does_not_move_the_confidence() -> None:
    # Confidence is the largest probability in both cases, whatever token is drawn.
    rule = CommitRule(mask_token_id=MASK, top_k=2, temperature=5.0)
    found = run(HAND, [2] * 50, rule, block_size=5, steps=2, generator=seeded(2))
    assert found.commit_pass.tolist() == [[0, 2, 1, 1, 2]] * 50
    assert len(found.endpoint.unique(dim=0)) > 10


def test_a_seed_is_a_result() -> None:
    def refine(seed: int) -> Trajectory:
        rule = CommitRule(mask_token_id=10, top_k=2, temperature=1.0)
        drafter = RandomDrafter(8, vocabulary=11, seed=1)
        torch.rand(3)  # the global source of randomness plays no part
        return run(drafter, [1] * 6, rule, block_size=8, steps=3, generator=seeded(seed))

    one, same, other = refine(4), refine(4), refine(5)
    assert torch.equal(one.endpoint, same.endpoint)
    assert torch.equal(one.commit_pass, same.commit_pass)
    assert torch.equal(one.top_logp, same.top_logp)
    assert not torch.equal(one.endpoint, other.endpoint)


def test_greedy_commitment_leaves_the_generator_alone() -> None:
    generator = seeded(0)
    before = generator.get_state()
    rule = CommitRule(mask_token_id=MASK, top_k=2)
    run(HAND, [0], rule, block_size=5, steps=2, generator=generator)
    assert torch.equal(generator.get_state(), before)


# --- refused ---------------------------------------------------------------------------------


def test_sampling_without_a_generator_is_refused() -> None:
    rule = CommitRule(mask_token_id=MASK, top_k=2, temperature=1.0)
    with pytest.raises(ValueError, match="generator"):
        run(HAND, [0], rule, block_size=5, steps=2)


def test_impossible_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="rows_per_tile"):
        run(HAND, [0], CommitRule(MASK, top_k=2), block_size=5, steps=2, rows_per_tile=0)
    with pytest.raises(ValueError, match="top_k"):
        CommitRule(mask_token_id=MASK, top_k=-1)
    with pytest.raises(ValueError, match="temperature"):
        CommitRule(mask_token_id=MASK, temperature=-0.5)


@pytest.mark.parametrize("steps", [0, 5])
def test_impossible_numbers_of_passes_are_refused(steps: int) -> None:
    with pytest.raises(ValueError, match="steps"):
        run(HAND, [0], CommitRule(mask_token_id=MASK, top_k=2), block_size=5, steps=steps)
