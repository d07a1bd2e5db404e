"""Trajectory collection: the frozen teacher refines every training block once (Algorithm 1).

Work is cut into shards of the sample list; each rank writes its own. What a record holds does
not depend on the number of ranks, and a second run does what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specforge.training.assembly import build_model_bundle
from torch import distributed

from specforge_dstill.data.feature_files import load_features, require_finite
from specforge_dstill.data.manifest import cache_digest
from specforge_dstill.data.progress import Progress
from specforge_dstill.errors import UserError
from specforge_dstill.maths.anchors import draw_anchors
from specforge_dstill.modes.assembly import list_samples
from specforge_dstill.modes.checkpoints import weights_hash
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.draws import sample_generator
from specforge_dstill.modes.finished import finished
from specforge_dstill.modes.refine import Refiner
from specforge_dstill.modes.samples import Sample
from specforge_dstill.modes.shard_calls import ShardCalls
from specforge_dstill.options import DstillOptions
from specforge_dstill.trajectory_store import (
    Manifest,
    SampleRecord,
    StoreIdentity,
    TrajectoryWriter,
    open_writer,
    partition,
)

if TYPE_CHECKING:
    from specforge.application import ResolvedRun

# Between two looks for the other ranks' shards: a look lists the whole store.
POLL_SECONDS = (0.05, 10.0)


@dataclass(frozen=True)
class Collector:
    """Refines the blocks of one sample.

    Attributes:
        folder: the feature cache.
        max_length: samples are cut to so many tokens, as in training.
        seed: of the anchors, and of sampled commitment.
    """

    drafter: BlockDrafter
    folder: Path
    options: DstillOptions
    max_length: int
    seed: int

    def record(self, sample_id: str) -> SampleRecord:
        """The trajectories of one sample, a pure function of teacher, sample, options and seed."""
        features = load_features(self.folder / sample_id)
        require_finite(self.folder / sample_id, features["hidden_states"][: self.max_length])
        sample = Sample(
            sample_id,
            input_ids=features["input_ids"][: self.max_length],
            loss_mask=features["loss_mask"][: self.max_length],
        )
        anchors = draw_anchors(
            sample.loss_mask,
            count=self.options.collect.anchors_per_sample,
            generator=sample_generator(self.seed, sample_id, "anchors"),
        )
        hidden_states = features["hidden_states"][: self.max_length]
        return self._refine(sample, hidden_states, anchors, commit_key="commit")

    @property
    def _refine(self) -> Refiner:
        every_pass = self.options.collect.record == "full"
        return Refiner(self.drafter, self.options, self.seed, every_pass)


def run_collect(resolved: ResolvedRun, options: DstillOptions) -> None:
    """What ``--mode dstill_collect`` runs, once the ranks are joined."""
    config = resolved.config
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    calls = ShardCalls.of(options.collect.on_shard, options.trajectories)
    done = finished(config, options)
    if done is not None:
        _tell("complete already", done, options.trajectories)
        if rank == 0 and calls is not None:
            calls.make_up(done.plan.shards)
            calls.settle(done.plan.shards, patience_s=60 * config.training.dist_timeout)
        return
    bundle = build_model_bundle(config, algorithm=resolved.algorithm)
    drafter = bundle.model.eval()
    folder = config.data.hidden_states_path
    collector = Collector(
        drafter, Path(folder), options, max_length=config.data.max_length, seed=config.training.seed
    )
    writer = open_writer(
        options.trajectories,
        identity=store_identity(config, options, drafter),
        sample_ids=list_samples(folder),
        shard_size=options.collect.shard_size,
        logp_dtype=options.collect.logp_dtype,
    )
    missing = writer.missing()
    share = list(partition(missing, ranks, rank))
    # Shares fit together only if every rank has looked before any rank writes.
    distributed.barrier()
    _write(writer, collector, share, calls, show=rank == 0)
    if rank == 0:
        if calls is not None:
            calls.make_up(writer.plan.shards, besides=missing)
        _await_shards(writer, patience_s=60 * config.training.dist_timeout)
        _tell("collected", writer.finish(), writer.uri)
        if calls is not None:
            calls.settle(writer.plan.shards, patience_s=60 * config.training.dist_timeout)


def _tell(what: str, manifest: Manifest, uri: str) -> None:
    if distributed.get_rank() == 0:
        print(
            f"trajectories {what}: {manifest.total_blocks} blocks of {manifest.plan.samples} "
            f"samples, {manifest.total_bytes} bytes in {uri}",
            flush=True,
        )


def store_identity(config: Any, options: DstillOptions, drafter: BlockDrafter) -> StoreIdentity:
    """Everything that decides what the records of this run hold."""
    collect = options.collect
    return StoreIdentity(
        block_size=drafter.shape.positions,
        steps=options.steps,
        top_k=collect.top_k,
        record=collect.record,
        commit=collect.commit,
        temperature=collect.temperature,
        mask_token_id=drafter.mask_token_id,
        vocab_size=drafter.lm_head.weight.shape[0],
        max_length=config.data.max_length,
        anchors_per_sample=collect.anchors_per_sample,
        seed=config.training.seed,
        teacher_hash=weights_hash(drafter.draft_model),
        draft_config=drafter.draft_model.config.to_diff_dict(),
        versions={
            name: version(name)
            for name in ("specforge-dstill", "specforge", "torch", "transformers")
        },
        cache=cache_digest(config.data.hidden_states_path),
    )


def _write(
    writer: TrajectoryWriter,
    collector: Collector,
    share: list[int],
    calls: ShardCalls | None,
    *,
    show: bool,
) -> None:
    samples = sum(len(writer.samples_of(index)) for index in share)
    asked = dict.fromkeys(share, 0)
    with Progress("collect", total=samples, enabled=show) as progress:

        def records(index: int) -> Iterator[SampleRecord]:
            for sample_id in writer.samples_of(index):
                yield collector.record(sample_id)
                asked[index] += 1
                progress.advance()

        for index in share:
            if calls is not None:
                calls.owe(index, writer.plan.shards)
            place = writer.write_shard(index, records(index))
            if calls is not None:
                calls.make(index, writer.plan.shards, place)
            # A shard that an earlier run made and could not send asks for no records.
            progress.advance(len(writer.samples_of(index)) - asked[index])


def _await_shards(writer: TrajectoryWriter, *, patience_s: float) -> None:
    """Wait for the other ranks' files, for as long as new ones keep coming.

    Not in a collective: a rank with much left to do would run into its timeout. If a rank dies
    its launcher ends this one too; where there is none, patience does.
    """
    wait, longest = POLL_SECONDS
    missing, since = writer.missing(), time.monotonic()
    while missing:
        if time.monotonic() - since > patience_s:
            raise UserError(
                f"no rank has finished a shard for {patience_s / 60:g} minutes "
                f"(training.dist_timeout), and {len(missing)} of {writer.plan.shards} are missing: "
                "a rank has died or hangs; what was finished stays, run the same command again"
            )
        time.sleep(wait)
        wait = min(1.5 * wait, longest)
        before, missing = missing, writer.missing()
        if len(missing) < len(before):
            since = time.monotonic()
