"""What an estimate is of: from the options and, for what they leave open, from a run file."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from specforge_dstill.data import targets
from specforge_dstill.data.estimate import SHORT_NAMES, CacheCost, Counts, StoreCost
from specforge_dstill.errors import UserError
from specforge_dstill.maths.reveal_schedule import check_steps
from specforge_dstill.options import DstillOptions
from specforge_dstill.runfile import DEFAULT_PATH, RunFile, load_run


@dataclass(frozen=True)
class Settings:
    """Everything that decides sizes.

    ``run`` is None where no run file is at hand; the folders are then not known. ``online`` tells
    that the student makes its trajectories as it trains, so that none are stored, ``with_last``
    that the target's last states are.
    """

    run: RunFile | None
    layers: int
    hidden: int
    dtype: str
    block_size: int
    steps: int
    top_k: int
    record: str
    logp_dtype: str
    anchors: int | None
    shard_size: int
    online: bool = False
    with_last: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace) -> Settings:
        """UserError when something is neither given nor in a run file."""
        run = run_file(args, "dstill_collect")
        student = run_file(args, "dstill_student")
        options = DstillOptions() if run is None else run.options
        collect = options.collect
        given = (args.layers, args.hidden, args.block_size)
        defaults: tuple[int | None, ...] = (None, None, None)
        vocabulary, with_last = None, False
        if run is not None and None in given:
            from specforge_dstill.modes.draft_shape import DraftShape

            own = DraftShape.of(run.config)
            defaults, vocabulary = (own.layers, own.hidden, own.block_size), own.vocabulary
            with_last = own.with_last
        names = ("--layers", "--hidden", "--block-size")
        layers, hidden, block_size = (
            _known(name, one, other)
            for name, one, other in zip(names, given, defaults, strict=True)
        )
        found = cls(
            run=run,
            layers=layers,
            hidden=hidden,
            dtype=SHORT_NAMES.get(args.dtype, args.dtype) or _stored_dtype(run),
            block_size=block_size,
            steps=args.steps or options.steps,
            top_k=collect.top_k if args.top_k is None else args.top_k,
            record=args.record or collect.record,
            logp_dtype=collect.logp_dtype,
            anchors=args.anchors or collect.anchors_per_sample,
            shard_size=collect.shard_size,
            online=student is not None and student.options.online,
            with_last=with_last,
        )
        found._check(vocabulary)
        return found

    def _check(self, vocabulary: int | None) -> None:
        """Refuse what no collection could be run with; ``vocabulary`` is None if not known."""
        try:
            check_steps(self.block_size, self.steps)
        except ValueError as error:
            raise UserError(f"--block-size and --steps: {error}") from error
        if vocabulary is not None and self.top_k >= vocabulary:
            raise UserError(
                f"--top-k is {self.top_k}, but the vocabulary has only {vocabulary - 1} tokens "
                f"besides the mask; make it {vocabulary - 1} or less"
            )

    def cache(self, counts: Counts, *, dtype: str | None = None) -> CacheCost:
        """What the features will take, in another ``dtype`` if one is given."""
        return CacheCost(
            layers=self.layers,
            hidden=self.hidden,
            dtype=dtype or self.dtype,
            samples=counts.samples,
            tokens=counts.tokens,
            with_last=self.with_last,
        )

    def store(self, counts: Counts) -> StoreCost | None:
        """What the trajectories will take; None where there is no store."""
        if self.online:
            return None
        return StoreCost.of(
            block_size=self.block_size,
            steps=self.steps,
            top_k=self.top_k,
            record=self.record,
            logp_dtype=self.logp_dtype,
            samples=counts.samples,
            blocks=counts.blocks,
            shard_size=self.shard_size,
        )


def run_file(args: argparse.Namespace, mode: str) -> RunFile | None:
    """The run file for a mode; None when none is named, given or needed."""
    if args.config is None and not args.overrides and not Path(DEFAULT_PATH).is_file():
        return None
    return load_run(args.config, args.overrides, mode)


def _known(name: str, given: int | None, default: int | None) -> int:
    value = default if given is None else given
    if value is None:
        raise UserError(f"{name} is not known: give it, or name a run file with --config")
    return value


def _stored_dtype(run: RunFile | None) -> str:
    """As in capture: float32 on a machine without a GPU unless the run file says."""
    if run is None:
        return "bfloat16"
    explicit = "model.torch_dtype" in run.explicit
    fits = explicit or targets.default_device() != "cpu"
    return str(run.config.model.torch_dtype) if fits else "float32"
