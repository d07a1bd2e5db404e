"""What is in a trajectory store, and one block of it as a picture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from specforge_dstill.data.progress import Progress
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.refinement import Refinement, most_telling, refinement
from specforge_dstill.evaluation.statistics_text import statistics_json
from specforge_dstill.evaluation.trajectory_statistics import TrajectoryStatistics
from specforge_dstill.trajectory_store import SampleRecord, TrajectoryReader, open_store
from specforge_dstill.verbs.inspect_text import (
    print_picture,
    print_statistics,
    print_summary,
    save_figure,
)
from specforge_dstill.verbs.references import Name, References, Sources
from specforge_dstill.verbs.unfinished_store import UnfinishedStore, unfinished_plan

_SETTINGS = (
    *("block_size", "steps", "top_k", "record", "commit", "temperature", "mask_token_id"),
    *("vocab_size", "max_length", "anchors_per_sample", "seed", "logp_dtype", "shard_size"),
    "teacher_hash",
)
#: Samples that are searched for a block worth a picture.
_SEARCHED = 200


@dataclass(frozen=True)
class Chosen:
    """One block of a store."""

    record: SampleRecord
    block: int
    refined: Refinement

    @property
    def title(self) -> str:
        """Where the block is and, against a reference, how it fared."""
        place = f"{self.record.sample_id}, block {self.block}"
        title = f"{place}: anchor at token {int(self.record.anchors[self.block])}"
        if not self.refined.has_reference:
            return title
        return f"{title}, {self.refined.accepted} of {self.refined.block_size} tokens accepted"


@dataclass(frozen=True)
class StoreInspection:
    """An open store with what may be looked up beside it."""

    path: str
    store: TrajectoryReader
    references: References | None
    sources: Sources

    @classmethod
    def of(cls, path: str, sources: Sources) -> StoreInspection:
        """Open the store. UserError as the store's own, or when a named cache does not fit."""
        plan = unfinished_plan(path)
        store = open_store(path) if plan is None else UnfinishedStore(Path(path), plan)
        first = next(iter(store.sample_ids), None)
        record = None if first is None else store[first]
        return cls(path, store, sources.references(store.identity, record), sources)

    def statistics(self, limit: int | None) -> TrajectoryStatistics:
        """Over the first ``limit`` samples, read one after the other."""
        identity = self.store.identity
        total = TrajectoryStatistics.none(block_size=identity.block_size, steps=identity.steps)
        chosen = self.store.sample_ids[:limit]
        with Progress("inspect", total=len(chosen)) as progress:
            for sample_id in chosen:
                record = self.store[sample_id]
                total = total + TrajectoryStatistics.of(
                    record.trajectory, steps=identity.steps, reference=self._reference(record)
                )
                progress.advance()
        return total

    def choose(self, sample_id: str | None, block: int | None) -> Chosen:
        """The block to be drawn; what is left open becomes the first with something to see.

        Raises:
            UserError: there is no such sample or block.
        """
        if sample_id is not None and sample_id not in self.store:
            first = next(iter(self.store.sample_ids), "none")
            raise UserError(f"{self.path}: has no sample {sample_id}; its first is {first}")
        ids = self.store.sample_ids if sample_id is None else (sample_id,)
        if block is not None:
            records = (self.store[each] for each in ids)
            found = next((r for r in records if len(r.anchors) > block), None)
            if found is None:
                where = "any sample" if sample_id is None else sample_id
                most = "" if sample_id is None else f": it has {len(self.store[ids[0]].anchors)}"
                raise UserError(f"{self.path}: no block {block} (from 0) in {where}{most}")
            return self._chosen(found, block)
        fallback = None
        for record in (self.store[each] for each in islice(ids, _SEARCHED)):
            if len(record.anchors) == 0:
                continue
            fallback = fallback or record
            telling = most_telling(record.trajectory, self._reference(record))
            if telling is not None:
                return self._chosen(record, telling)
        if fallback is None:
            raise UserError(f"{self.path}: no blocks in its first {_SEARCHED} samples")
        return self._chosen(fallback, 0)

    def summary(self) -> dict[str, Any]:
        """Settings and counts."""
        manifest = self.store.manifest
        settings = manifest.plan.settings()
        return {
            "path": self.path,
            "kind": "trajectory store",
            "complete": len(manifest.shards) == manifest.plan.shards,
            "settings": {name: settings[name] for name in _SETTINGS},
            "versions": [dict(versions) for versions in manifest.versions],
            "samples": len(self.store),
            "planned_samples": manifest.plan.samples,
            "blocks": manifest.total_blocks,
            "shards": len(manifest.shards),
            "planned_shards": manifest.plan.shards,
            "bytes": manifest.total_bytes,
        }

    def _reference(self, record: SampleRecord) -> Any:
        return None if self.references is None else self.references.blocks(record)

    def _chosen(self, record: SampleRecord, block: int) -> Chosen:
        refined = refinement(
            record.trajectory,
            block,
            steps=self.store.identity.steps,
            reference=self._reference(record),
        )
        return Chosen(record, block, refined)


def inspect_store(
    path: str,
    sources: Sources,
    *,
    limit: int | None,
    sample: str | None,
    block: int | None,
    png: Path | None,
    as_json: bool,
) -> None:
    """Print what was asked for: one block, or the whole store and its most telling block."""
    inspection = StoreInspection.of(path, sources)
    one = sample is not None or block is not None or png is not None
    if one:
        chosen, name = inspection.choose(sample, block), sources.name()
        if png is not None:
            save_figure(chosen.refined, name, png, title=chosen.title)
        if as_json:
            print(json.dumps(_block_json(chosen, name), ensure_ascii=False, indent=1))
        else:
            print_picture(chosen.refined, name, title=chosen.title)
        return
    summary, found = inspection.summary(), inspection.statistics(limit)
    if as_json:
        content = {**summary, "statistics": statistics_json(found)}
        print(json.dumps(content, ensure_ascii=False, indent=1))
        return
    print_summary(summary)
    print_statistics(found)
    if found.blocks:
        chosen = inspection.choose(None, None)
        print()
        print_picture(chosen.refined, sources.name(), title=chosen.title)


def _block_json(chosen: Chosen, name: Name) -> dict[str, Any]:
    texts = {token: name(token) for token in chosen.refined.tokens()}
    return {
        "sample_id": chosen.record.sample_id,
        "block": chosen.block,
        "anchor": int(chosen.record.anchors[chosen.block]),
        **chosen.refined.to_json(texts),
    }
