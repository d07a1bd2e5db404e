"""From a grid to commands: for each training, collection and evaluation, shared where possible.

A collection belongs to a teacher, a seed and its own options, and serves all variants that ask for
just that. The feature cache is the run file's and serves all; so do the target's answers.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specforge_dstill.ablations.contents import Inputs, prompt_hashes
from specforge_dstill.ablations.grid import RECORDS, RESULTS, UNREAD, Grid, Variant
from specforge_dstill.ablations.job import Job
from specforge_dstill.errors import UserError
from specforge_dstill.options import Scalar, flatten
from specforge_dstill.runfile import RunFile, load_run

#: What a variant's options change in the records that it reads, too.
_OF_RECORDS = ("dstill.steps", "dstill.collect.", "data.max_length", "data.hidden_states_path")
#: What may change between two runs of the command without the result being another.
_FREE = (
    *("deployment", "tracking", "profiling", "training.resume_from", "training.role"),
    *("training.save_interval", "training.log_interval", "training.max_checkpoints"),
    *("training.dist_timeout", "data.dataloader_num_workers", "model.cache_dir"),
)
LOG, _STORE, _ANSWERS = "log.txt", "store", "answers"

_Contents = Callable[[Inputs], dict[str, Any]]


def jobs_of(grid: Grid) -> list[Job]:
    """All jobs, each after those that it needs.

    Raises:
        UserError: an option that no section has, or a value out of bounds, with the variant's name.
    """
    contents = cache(Inputs.contents)  # few are named, by many jobs
    found: dict[str, Job] = {}
    for seed in grid.seeds:
        trained = []
        for name, variant in grid.ordered():
            planned = _Planned(grid, seed, name, variant, contents)
            for job in planned.jobs():
                found.setdefault(job.name, job)
            trained.append(found[planned.job_name])
        evaluated = _evaluation(grid, seed, trained, contents)
        found[evaluated.name] = evaluated
    return list(found.values())


def results_of(grid: Grid, seed: int) -> Path:
    """Where a seed's evaluation is."""
    return Path(grid.output) / f"seed-{seed}" / RESULTS


def evaluation_of(seed: int) -> str:
    """The name of a seed's evaluation among the jobs."""
    return f"seed-{seed}/{RESULTS}"


def log_of(grid: Grid, seed: int, variant: str) -> Path:
    """What a variant's training said."""
    return Path(grid.output) / f"seed-{seed}" / variant / LOG


@dataclass(frozen=True)
class _Planned:
    """A variant under a seed."""

    grid: Grid
    seed: int
    name: str
    variant: Variant
    contents: _Contents

    @property
    def job_name(self) -> str:
        return f"seed-{self.seed}/{self.name}"

    def folder(self, name: str) -> Path:
        return Path(self.grid.output) / f"seed-{self.seed}" / name

    def checkpoint(self, name: str) -> Path:
        """A variant's last; SpecForge keeps the link."""
        return self.folder(name) / f"{name}-latest"

    def jobs(self) -> Iterator[Job]:
        """The collection that it reads, if any, and its training."""
        variant, needs = self.variant, self._source()
        own = {**variant.options, "training.seed": self.seed, "run_id": self.name}
        own["output_dir"] = str(self.folder(self.name))
        start: dict[str, Scalar] = {}
        if variant.start is not None:
            start["model.draft_checkpoint_path"] = str(self.checkpoint(variant.start))
            if variant.online:
                own["dstill.student.teacher"] = str(self.checkpoint(variant.start))
        if variant.mode == "dstill_student" and not variant.online:
            collection = self._collection(start)
            needs = (*needs, collection.name)
            own["dstill.trajectories"] = str(collection.folder / _STORE)
            yield collection
        run = self._run(variant.mode, own | start)
        yield Job(
            name=self.job_name,
            folder=self.folder(self.name),
            command=self._training(variant.mode, own),
            needs=needs,
            sources=self._source(),
            settings={**_settings(run), "ranks": self.grid.ranks},
            inputs=self.contents(Inputs.of(run)),
            fresh=tuple(_words(start)),
            latest=self.checkpoint(self.name),
        )

    def _source(self) -> tuple[str, ...]:
        start = self.variant.start
        return () if start is None else (f"seed-{self.seed}/{start}",)

    def _collection(self, teacher: Mapping[str, Scalar]) -> Job:
        asked = {k: v for k, v in self.variant.options.items() if k.startswith(_OF_RECORDS)}
        name = "-".join([RECORDS, str(self.variant.start), *(_slug(k, asked[k]) for k in asked)])
        folder = self.folder(name)
        own = {**asked, **teacher, "training.seed": self.seed, "output_dir": str(folder)}
        own["dstill.trajectories"] = str(folder / _STORE)
        run = self._run("dstill_collect", own)
        return Job(
            name=f"seed-{self.seed}/{name}",
            folder=folder,
            command=self._training("dstill_collect", own),
            needs=self._source(),
            sources=self._source(),
            settings=_settings(run),
            inputs=self.contents(Inputs.of(run)),
        )

    def _training(self, mode: str, options: Mapping[str, Scalar]) -> tuple[str, ...]:
        grid = self.grid
        here = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(grid.ranks))
        start = shlex.split(grid.launcher) if grid.launcher else [sys.executable, *here]
        module = ("-m", "specforge.train", "--mode", mode, "--config", grid.run)
        return (*start, *module, *_words(options))

    def _run(self, mode: str, options: Mapping[str, Scalar]) -> RunFile:
        try:
            return load_run(self.grid.run, _words(options), mode)
        except UserError as error:
            raise UserError(f"variants.{self.name}: {error}") from None


def _settings(run: RunFile) -> dict[str, Any]:
    values = {**flatten(run.config.model_dump()), **run.options.flat()}
    free = (*_FREE, *UNREAD[run.mode])
    return {name: value for name, value in values.items() if not name.startswith(free)}


def _evaluation(grid: Grid, seed: int, trained: list[Job], contents: _Contents) -> Job:
    """One for all variants of a seed. They share the target's answers, so they take turns."""
    asked, results = grid.evaluate, results_of(grid, seed)
    words = [sys.executable, "-m", "specforge_dstill", "evaluate", "--replay", "--config", grid.run]
    for name, source in asked.prompts.items():
        words += ["--prompts", name if source is None else f"{name}={source}"]
    words += ["--max-new-tokens", str(asked.max_new_tokens), "--batch-size", str(asked.batch_size)]
    if asked.limit is not None:
        words += ["--limit", str(asked.limit)]
    if asked.dtype is not None:
        words += ["--dtype", asked.dtype]
    for (name, variant), job in zip(grid.ordered(), trained, strict=True):
        passes = variant.passes or _passes(variant)
        steps = "" if passes is None else ":" + ",".join(map(str, passes))
        words += ["--drafter", f"{name}={job.latest}{steps}"]
    words += ["--answers", str(Path(grid.output) / _ANSWERS), "--output", str(results)]
    names = tuple(job.name for job in trained)
    return Job(
        name=evaluation_of(seed),
        folder=results,
        # Of variants that the grid no longer has; that is no reason to measure the others anew.
        command=(*words, "--overwrite"),
        needs=names,
        sources=names,
        settings={"command": words[1:], "prompts": prompt_hashes(asked.prompts)},
        inputs=contents(Inputs.of(load_run(grid.run, (), "dflash"))),
        remade=True,
        in_turn=_ANSWERS,
    )


def _passes(variant: Variant) -> list[int] | None:
    """At which it is measured; None for evaluate's own default, 1 and the run file's K."""
    own = variant.options.get("dstill.steps")
    if variant.mode == "dstill_student":
        return [1]
    return None if own is None else [1, int(own)]


def _words(options: Mapping[str, Scalar]) -> list[str]:
    return [f"{name}={_text(value)}" for name, value in options.items()]


def _text(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _slug(option: str, value: Scalar) -> str:
    return f"{option.rpartition('.')[2]}={_text(value)}".replace("/", "_")
