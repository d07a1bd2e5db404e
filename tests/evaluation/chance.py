"""A tiny world in which every continuation's probability is known.

Shapes: N answers at once, VOCAB tokens; an answer has LENGTH tokens, a draft DRAFTED.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specforge_dstill.evaluation.decoding import Read
from specforge_dstill.evaluation.rules import Draft
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.maths.drawing import draw
from specforge_dstill.maths.verification import Accepted

VOCAB, LENGTH, DRAFTED = 5, 4, 3
PROMPT = torch.tensor([0])


@dataclass(frozen=True)
class Table:
    """Logits after every prefix that a draft can reach: [prefixes, VOCAB], shortest first."""

    logits: Tensor

    @classmethod
    def random(cls, *, seed: int, sharpness: float = 1.0) -> Table:
        count = sum(VOCAB**length for length in range(LENGTH + DRAFTED + 1))
        generator = torch.Generator().manual_seed(seed)
        return cls(sharpness * torch.randn(count, VOCAB, generator=generator))

    def after(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Logits after the first ``lengths`` [...] of ``tokens`` [..., T]: [..., VOCAB]."""
        places = torch.arange(tokens.shape[-1])
        inside = places < lengths[..., None]
        powers = torch.where(inside, VOCAB ** (lengths[..., None] - 1 - places), 0)
        shorter = (VOCAB**lengths - 1) // (VOCAB - 1)  # prefixes of fewer tokens
        return self.logits[shorter + (tokens * powers).sum(-1)]

    def exact(self, sampling: Sampling) -> Tensor:
        """The probability of each continuation of LENGTH tokens, [VOCAB ** LENGTH] float64."""
        tokens = torch.tensor(list(itertools.product(range(VOCAB), repeat=LENGTH)))
        found = torch.ones(len(tokens), dtype=torch.float64)
        for place in range(LENGTH):
            logits = self.after(tokens, torch.full((len(tokens),), place))
            p = sampling.probabilities(logits).double()
            found *= p.gather(1, tokens[:, place : place + 1]).squeeze(1)
        return found


def drafted(table: Table, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Logits of a factorised draft after each prefix, [N, DRAFTED, VOCAB].

    Position i reads the prefix without its last i tokens: any function of the prefix would do.
    """
    shorter = (lengths[:, None] - torch.arange(DRAFTED)).clamp_min(0)
    return table.after(tokens[:, None].expand(-1, DRAFTED, -1), shorter)


#: (drafted tokens [N, DRAFTED], draft logits, target logits [N, DRAFTED + 1, VOCAB], generator)
Judge = Callable[[Tensor, Tensor, Tensor, torch.Generator], Accepted]


def decode_many(
    target: Table,
    draft: Table,
    judge: Judge,
    *,
    sampling: Sampling,
    greedy: bool,
    draws: int,
    seed: int = 1,
) -> tuple[Tensor, float]:
    """``draws`` answers at once.

    Args:
        sampling: of the first token, and of drafts unless they are ``greedy``.

    Returns:
        Counts of the continuations [VOCAB ** LENGTH], and the mean accepted prefix.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(draws, LENGTH + DRAFTED + 1, dtype=torch.int64)
    lengths = torch.zeros(draws, dtype=torch.int64)
    tokens[:, 0] = sampling.tokens(target.after(tokens, lengths), generator)
    lengths += 1
    accepted = []
    while len(rows := (lengths < LENGTH).nonzero().squeeze(1)):
        seen, known = tokens[rows], lengths[rows]
        q = drafted(draft, seen, known)
        proposals = q.argmax(-1)
        if not greedy:
            proposals = sampling.tokens(q.flatten(0, 1), generator).view_as(proposals)
        reach = known[:, None] + torch.arange(DRAFTED + 1)
        seen = seen.scatter(1, reach[:, :-1], proposals)
        p = target.after(seen[:, None].expand(-1, DRAFTED + 1, -1), reach)
        found = judge(proposals, q, p, generator)
        end = known + found.lengths
        tokens[rows] = seen.scatter(1, end[:, None], found.next_tokens[:, None])
        lengths[rows] = end + 1
        accepted.append(found.lengths)
    return cells(tokens[:, :LENGTH]), float(torch.cat(accepted).double().mean())


def cells(answers: Tensor) -> Tensor:
    """Counts [VOCAB ** LENGTH] of answers [N, LENGTH]."""
    place = torch.tensor([VOCAB**i for i in reversed(range(LENGTH))])
    return torch.bincount((answers * place).sum(1), minlength=VOCAB**LENGTH)


# The same world behind the protocols of real decoding; the prompt, one token, does not count.


@dataclass(frozen=True)
class TableTarget:
    table: Table

    def begin(self) -> TableSession:
        return TableSession(self.table)


class TableSession:
    def __init__(self, table: Table) -> None:
        self.table, self.seen = table, list[int]()

    def read(self, tokens: Tensor, *, every_logit: bool, states: bool) -> Read:
        start = len(self.seen)
        self.seen += tokens.tolist()
        lengths = torch.arange(start if every_logit else len(self.seen) - 1, len(self.seen))
        known = torch.tensor(self.seen[1:]).long().expand(len(lengths), -1)
        return Read(self.table.after(known, lengths), tokens[:, None].float() if states else None)

    def roll_back(self, length: int) -> None:
        del self.seen[length:]


@dataclass(frozen=True)
class TableDrafter:
    """Drafts greedily without ``sampling``."""

    table: Table
    sampling: Sampling | None

    def begin(self) -> TableDraftSession:
        return TableDraftSession(self)


class TableDraftSession:
    def __init__(self, drafter: TableDrafter) -> None:
        self.drafter, self.seen = drafter, list[int]()

    def draft(self, states: Tensor, anchor: Tensor, generator: torch.Generator | None) -> Draft:
        self.seen += states[:, 0].long().tolist()
        prefix = torch.tensor([*self.seen[1:], int(anchor)])[None]
        q = drafted(self.drafter.table, prefix, torch.tensor([prefix.shape[1]]))[0]
        if self.drafter.sampling is None:
            return Draft(q.argmax(-1))
        probabilities = self.drafter.sampling.probabilities(q)
        return Draft(draw(probabilities, generator=generator), probabilities)


def as_tensor(answers: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([list(answer) for answer in answers])
