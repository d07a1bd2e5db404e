"""Our side: the two training steps, the collection and the loader, on one set of data."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from peer import Peer
from shapes import MASK_TOKEN_ID, Shape
from specforge.modeling.draft.dflash import DFlashDraftModel
from specforge.runtime.contracts import TrainBatch
from specforge.runtime.data_plane import FeatureDataLoader, LocalFeatureStore
from specforge.training.strategies.base import DraftTrainStrategy, StepContext
from torch import Tensor, nn
from transformers import Qwen3Config

from specforge_dstill.maths.anchors import draw_anchors
from specforge_dstill.maths.reveal_schedule import commit_counts
from specforge_dstill.modes import registry
from specforge_dstill.modes.block_step import BlockStep
from specforge_dstill.modes.collect import Collector, store_identity
from specforge_dstill.modes.drafter import BlockDrafter
from specforge_dstill.modes.draws import sample_generator
from specforge_dstill.modes.records import StoredRecords
from specforge_dstill.modes.student import student_strategy
from specforge_dstill.modes.teacher import teacher_strategy
from specforge_dstill.option_sections import CollectOptions
from specforge_dstill.options import DstillOptions
from specforge_dstill.trajectory_store import StoreWriter, TrajectoryStore

SEED = 0
# Where the root schedule stands at its average over training, p_root = 0.71.
AVERAGE, HORIZON = 460_000, 1_000_000


@dataclass(frozen=True)
class Step:
    """What one of our steps worked on: anchors [b, N] and rows through the LM head."""

    anchors: Tensor
    rows: int


class Ours:
    """Drafter, data and strategies at a shape.

    Args:
        folder: takes the feature cache and the trajectory stores.
    """

    def __init__(self, shape: Shape, folder: Path) -> None:
        torch.manual_seed(SEED)
        self.shape = shape
        self.folder = folder
        self.device = torch.device(shape.device)
        self.dtype = getattr(torch, shape.dtype)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self.embeddings = nn.Embedding(shape.vocabulary, shape.hidden)
        for frozen in (self.head, self.embeddings):
            frozen.to(self.device, self.dtype).requires_grad_(False)
        self.options = DstillOptions(
            steps=shape.steps,
            collect=CollectOptions(top_k=shape.top_k, anchors_per_sample=shape.anchors),
        )
        self.drafter = self.attending(shape.attention)
        self.cache = folder / "cache"
        self.sample_ids = [f"data/{index:08d}.ckpt" for index in range(shape.batch)]
        self._save_features()
        self.batch = next(iter(self._loader(batches=1)))
        self.data = {name: tensor.to(self.device) for name, tensor in self.batch.tensors.items()}

    def attending(self, attention: str, *, weights: Any = None) -> BlockDrafter:
        """A drafter with that attention backend, and with the draft weights of another."""
        draft = self._draft()
        if weights is not None:
            draft.load_state_dict(weights)
        return BlockDrafter(
            draft,
            lm_head=self.head,
            embed_tokens=self.embeddings,
            mask_token_id=MASK_TOKEN_ID,
            attention_backend=attention,
            blocks_per_group=self.options.blocks_per_group,
        )

    def peer(self) -> Peer:
        """SpecForge's model over the same draft weights and frozen parts."""
        draft = self._draft()
        draft.load_state_dict(self.drafter.draft_model.state_dict())
        draft.config._attn_implementation = self.shape.attention
        return Peer(
            draft,
            self.head,
            self.embeddings,
            MASK_TOKEN_ID,
            block_size=self.shape.block_size,
            attention_backend=self.shape.attention,
            num_anchors=self.shape.anchors,
        )

    def teacher_anchors(self, visit: int) -> Tensor:
        """The anchors that Stage I draws at a step, [b, N]: draws are a function of the step."""
        return self._drawn(visit)

    def recorded_anchors(self) -> Tensor:
        """The anchors of the trajectories, [b, N]."""
        return self._drawn("anchors")

    def teacher_step(self, visit: int, *, anchors: int | None = None) -> Step:
        """Forward and backward of Stage I."""
        strategy = teacher_strategy(
            BlockStep(self.drafter, self.options),
            num_anchors=anchors or self.shape.anchors,
            seed=SEED,
        )
        rows = _forward_backward(strategy, self.batch_on_device(), visit, HORIZON)
        return Step(self.teacher_anchors(visit), rows)

    def student_step(self, visit: int, store: TrajectoryStore) -> Step:
        """Forward and backward of Stage II with its look-up, at the schedule's average."""
        rows = _forward_backward(
            self._student(store), self.batch_on_device(), AVERAGE + visit, HORIZON
        )
        return Step(self.recorded_anchors(), rows)

    def collect(self, name: str, *, drafter: BlockDrafter | None = None) -> Path:
        """Collect every sample into a new store, written to the end."""
        drafter = drafter or self.drafter
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        config = SimpleNamespace(
            training=SimpleNamespace(seed=SEED),
            data=SimpleNamespace(
                max_length=self.shape.sequence, hidden_states_path=str(self.cache)
            ),
        )
        collector = Collector(
            drafter, self.cache, self.options, max_length=self.shape.sequence, seed=SEED
        )
        writer = StoreWriter(
            folder,
            identity=store_identity(config, self.options, drafter),
            sample_ids=self.sample_ids,
            shard_size=len(self.sample_ids),
        )
        for index in writer.missing():
            writer.write_shard(index, [collector.record(name) for name in writer.samples_of(index)])
        writer.finish()
        return folder

    def collected_rows(self) -> int:
        """Rows through the LM head in one collection: what is masked, over the K passes."""
        counts = commit_counts(self.shape.block_size, self.shape.steps)
        masked = [self.shape.block_size - 1 - sum(counts[:done]) for done in range(len(counts))]
        return sum(masked) * self.shape.anchors * len(self.sample_ids)

    def wait_share(self, store: TrajectoryStore) -> float:
        """The share of a run of student steps spent in ``next`` of SpecForge's loader.

        Counted as its trainer counts it, but for the first batch, which a run waits for once.
        """
        batches = iter(self._loader(batches=1 + self.shape.steps_per_loop))
        next(batches)
        waited, start = 0.0, time.perf_counter()
        for visit in range(self.shape.steps_per_loop):
            asked = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - asked
            on_device = self._move(batch)
            _forward_backward(self._student(store), on_device, AVERAGE + visit, HORIZON)
            self.wait()
        return waited / (time.perf_counter() - start)

    def batch_on_device(self) -> TrainBatch:
        return self._move(self.batch)

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _student(self, store: TrajectoryStore) -> DraftTrainStrategy:
        step = BlockStep(self.drafter, self.options)
        return student_strategy(
            step, StoredRecords(store), num_anchors=self.shape.anchors, seed=SEED
        )

    def _move(self, batch: TrainBatch) -> TrainBatch:
        tensors = {name: tensor.to(self.device) for name, tensor in batch.tensors.items()}
        return TrainBatch(batch.sample_ids, batch.strategy, tensors, batch.metadata)

    def _draft(self) -> Any:
        config = Qwen3Config(**self.shape.draft_config())
        return DFlashDraftModel(config).to(self.device, self.dtype).train()

    def _drawn(self, visit: int | str) -> Tensor:
        anchors = [
            draw_anchors(
                mask,
                count=self.shape.anchors,
                generator=sample_generator(SEED, sample_id, visit),
            )
            for mask, sample_id in zip(
                self.batch.tensors["loss_mask"], self.batch.sample_ids, strict=True
            )
        ]
        return torch.stack(anchors).to(self.device)

    def _save_features(self) -> None:
        shape = self.shape
        width = shape.target_layers * shape.hidden
        for sample_id in self.sample_ids:
            loss_mask = torch.ones(shape.sequence, dtype=torch.int64)
            loss_mask[: shape.sequence // 8] = 0  # a prompt
            path = self.cache / sample_id
            path.parent.mkdir(parents=True, exist_ok=True)
            features = {
                "input_ids": torch.randint(4, shape.vocabulary, (shape.sequence,)),
                "loss_mask": loss_mask,
                "hidden_states": torch.randn(shape.sequence, width).to(self.dtype),
            }
            torch.save(features, path)

    def _loader(self, *, batches: int) -> FeatureDataLoader:
        """SpecForge's loader as its trainer builds it for Stage II; samples come again."""
        providers = registry(self.options).resolve("dstill_student").providers
        offline, length = providers.offline[0], self.shape.sequence
        reader = offline.build_reader(str(self.cache), run_id="bench", ttt_length=1, max_len=length)
        return FeatureDataLoader(
            LocalFeatureStore("bench"),
            refs=reader.read() * batches,
            batch_size=self.shape.batch,
            collate_fn=offline.build_collator(),
            per_sample_transform=offline.build_normalizer(length),
            strategy="dstill_student",
            num_workers=providers.model.default_dataloader_num_workers,
        )


def _forward_backward(
    strategy: DraftTrainStrategy, batch: TrainBatch, step: int, horizon: int
) -> int:
    """Run a step and give the number of its supervised rows."""
    output = strategy.forward_loss(batch, StepContext(step, horizon))
    output.loss.backward()
    return int(output.ratio_metrics["acc"][1])
