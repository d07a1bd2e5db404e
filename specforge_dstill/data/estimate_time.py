"""How long stages take, and whether what they write fits: arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specforge_dstill.table import byte_text


@dataclass(frozen=True)
class Hours:
    """How long a stage takes.

    Attributes:
        stage: capture, collect, …
        work, unit: what there is to do in all, and of what.
        rate: units a second and rank.
        ranks: how many work at once.
        source: "given", or what was measured.
    """

    stage: str
    work: int
    unit: str
    rate: float
    ranks: int
    source: str

    @property
    def hours(self) -> float:
        return self.work / (self.rate * self.ranks) / 3600

    @property
    def text(self) -> str:
        """The arithmetic."""
        ranks = f" x {self.ranks} ranks" if self.ranks > 1 else ""
        rate = f"{self.rate:,.0f}" if self.rate >= 100 else f"{self.rate:.3g}"
        return f"{self.work:,} {self.unit} / ({rate} a second{ranks})"


@dataclass(frozen=True)
class Training:
    """A stage of optimizer steps, each on ``batch`` samples of all ranks together."""

    stage: str
    samples: int
    batch: int
    epochs: int
    seconds_per_step: float

    @property
    def steps(self) -> int:
        return -(-self.samples // self.batch) * self.epochs

    @property
    def hours(self) -> float:
        return self.steps * self.seconds_per_step / 3600

    @property
    def text(self) -> str:
        """The arithmetic."""
        return (
            f"{self.epochs} epochs x {self.samples:,} samples / {self.batch} a step x "
            f"{self.seconds_per_step:g} s"
        )


@dataclass(frozen=True)
class Room:
    """Space on one file system: what goes there, and how much of it is free."""

    folders: Sequence[str]
    needed: int
    free: int

    @property
    def fits(self) -> bool:
        return self.needed <= self.free

    @property
    def text(self) -> str:
        names = " and ".join(self.folders)
        if self.fits:
            return f"{names}: {byte_text(self.needed)} of {byte_text(self.free)} free"
        lacking = byte_text(self.needed - self.free)
        return (
            f"{names}: DOES NOT FIT: {byte_text(self.needed)} needed, {byte_text(self.free)} "
            f"free, {lacking} too few"
        )
