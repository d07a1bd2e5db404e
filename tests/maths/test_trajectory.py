"""States rebuilt from an endpoint and its commit passes (Eq. 8)."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specforge_dstill.maths.trajectory import Trajectory, masked_at, state_at

MASK = 99


@st.composite
def refinements(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Endpoint and commit passes of N blocks (N may be 0), and K."""
    count, block_size = draw(st.integers(0, 4)), draw(st.integers(2, 9))
    steps = draw(st.integers(1, block_size - 1))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    endpoint = torch.randint(50, (count, block_size), generator=generator)
    commit_pass = torch.randint(1, steps + 1, (count, block_size), generator=generator)
    commit_pass[:, 0] = 0
    return endpoint, commit_pass, steps


def test_three_states_by_hand() -> None:
    endpoint = torch.tensor([[7, 3, 5, 4]] * 3)
    commit_pass = torch.tensor([[0, 2, 1, 2]] * 3)
    # Pass 1 commits position 2, pass 2 the other two.
    states = state_at(endpoint, commit_pass, torch.tensor([1, 2, 3]), mask_token_id=MASK)
    assert states.tolist() == [[7, MASK, MASK, MASK], [7, MASK, 5, MASK], [7, 3, 5, 4]]


def test_no_block() -> None:
    none = torch.zeros(0, 4, dtype=torch.int64)
    t = torch.zeros(0, dtype=torch.int64)
    assert state_at(none, none, t, mask_token_id=MASK).shape == (0, 4)
    for recorded in (1, 3):
        ids = torch.zeros(0, recorded, 3, 2, dtype=torch.int64)
        trajectory = Trajectory(none, none, ids, ids.float())
        assert len(trajectory) == 0
        assert [part.shape for part in trajectory.committing()] == [(0, 3, 2)] * 2


@given(refinements(), st.integers(0, 1000))
def test_against_the_loop(case: tuple[Tensor, Tensor, int], seed: int) -> None:
    endpoint, commit_pass, steps = case
    generator = torch.Generator().manual_seed(seed)
    t = torch.randint(1, steps + 2, (len(endpoint),), generator=generator)  # each block its own
    states = state_at(endpoint, commit_pass, t, mask_token_id=MASK)
    masked = masked_at(commit_pass, t)
    for n in range(endpoint.shape[0]):
        for i in range(endpoint.shape[1]):
            visible = commit_pass[n, i] < t[n]
            assert states[n, i] == (endpoint[n, i] if visible else MASK)
            assert masked[n, i] == (not visible)


@given(refinements())
def test_a_refinement_goes_from_root_to_endpoint_and_never_back(
    case: tuple[Tensor, Tensor, int],
) -> None:
    endpoint, commit_pass, steps = case

    def at(t: int) -> Tensor:
        passes = torch.full((len(endpoint),), t)
        return state_at(endpoint, commit_pass, passes, mask_token_id=MASK)

    root = at(1)
    assert torch.equal(root[:, 0], endpoint[:, 0])
    assert (root[:, 1:] == MASK).all()
    assert torch.equal(at(steps + 1), endpoint)
    for t in range(1, steps + 1):
        before, after = at(t), at(t + 1)
        visible = before != MASK
        assert torch.equal(before[visible], after[visible])
        newly = (after != MASK) & ~visible
        assert torch.equal(newly, commit_pass == t)


@given(refinements(), st.integers(0, 3))
def test_the_committing_pass_of_a_full_record(
    case: tuple[Tensor, Tensor, int], retained: int
) -> None:
    endpoint, commit_pass, steps = case
    count, block_size = endpoint.shape
    shape = (count, steps, block_size - 1, retained)
    generator = torch.Generator().manual_seed(0)
    full = Trajectory(
        endpoint,
        commit_pass,
        torch.randint(50, shape, generator=generator),
        torch.rand(shape, generator=generator).log(),
    )
    ids, logp = full.committing()
    assert ids.shape == logp.shape == (count, block_size - 1, retained)
    for n in range(count):
        for i in range(1, block_size):
            t = int(commit_pass[n, i])
            assert torch.equal(ids[n, i - 1], full.top_ids[n, t - 1, i - 1])
            assert torch.equal(logp[n, i - 1], full.top_logp[n, t - 1, i - 1])
    # A record that kept the committing pass alone says the same.
    short = Trajectory(endpoint, commit_pass, ids[:, None], logp[:, None])
    assert all(map(torch.equal, short.committing(), (ids, logp)))


@given(refinements())
def test_picking_blocks(case: tuple[Tensor, Tensor, int]) -> None:
    endpoint, commit_pass, _ = case
    numbers = torch.arange(len(endpoint))
    ids = numbers[:, None, None, None].expand(-1, 1, endpoint.shape[1] - 1, 2)
    trajectory = Trajectory(endpoint, commit_pass, ids, -ids.float())
    for index in (numbers.flip(0), numbers % 2 == 1):
        picked = trajectory[index]
        assert torch.equal(picked.endpoint, endpoint[index])
        assert torch.equal(picked.commit_pass, commit_pass[index])
        assert torch.equal(picked.top_ids[:, 0, 0, 0], numbers[index])
        assert torch.equal(picked.top_logp[:, 0, 0, 0], -numbers[index].float())
        assert len(picked) == len(numbers[index])


@given(refinements(), st.integers(0, 4))
def test_parts_put_together_are_the_whole(case: tuple[Tensor, Tensor, int], cut: int) -> None:
    endpoint, commit_pass, steps = case
    shape = (len(endpoint), steps, endpoint.shape[1] - 1, 2)
    ids = torch.randint(50, shape, generator=torch.Generator().manual_seed(0))
    whole = Trajectory(endpoint, commit_pass, ids, -ids.float()).to("cpu")
    numbers = torch.arange(len(endpoint))
    joined = Trajectory.cat([whole[numbers[:cut]], whole[numbers[cut:]]])
    for name in ("endpoint", "commit_pass", "top_ids", "top_logp"):
        assert torch.equal(getattr(joined, name), getattr(whole, name)), name
