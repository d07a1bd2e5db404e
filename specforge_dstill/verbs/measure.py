"""How fast this machine captures and collects: short runs of the real thing."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from specforge_dstill.data import targets
from specforge_dstill.data.batches import batches_by_length
from specforge_dstill.data.capture_input import FP8
from specforge_dstill.data.capture_plan import CapturePlan
from specforge_dstill.data.capture_transformers import TransformersExtractor
from specforge_dstill.data.chat import TokenSample
from specforge_dstill.data.conversations import read_conversations
from specforge_dstill.data.estimate import Counts
from specforge_dstill.data.feature_record import RecordFormat, record_bytes
from specforge_dstill.data.float8 import FLOAT8
from specforge_dstill.data.left_out import LeftOutError
from specforge_dstill.errors import UserError
from specforge_dstill.files import nearest_folder, write_atomically, writing
from specforge_dstill.maths.rollout import CommitRule
from specforge_dstill.modes.draft_shape import untrained_drafter
from specforge_dstill.modes.drafter import rollout_blocks
from specforge_dstill.verbs.estimate_counts import encoding_of, plan_of
from specforge_dstill.verbs.estimate_settings import Settings

_SECONDS = 10.0
#: Conversations that a measurement of the capture uses.
_CONVERSATIONS = 64


Measured = tuple[float, str]  # units a second on one rank, and in words what was run


def measured_rates(
    args: argparse.Namespace, settings: Settings, counts: Counts, stages: Sequence[str]
) -> dict[str, Measured]:
    """Measure ``stages``, of "capture" and "collect", with the estimate's own options.

    Raises:
        UserError: an option is missing, or the target cannot be loaded.
    """
    device = args.device or targets.default_device()
    found = {}
    if "capture" in stages:
        if args.conversations is None:
            raise UserError(
                "--measure captures some conversations: name them with --conversations, or give "
                "--capture-tokens-per-second"
            )
        plan, samples = plan_of(settings, "--measure"), _samples(args, settings)
        found["capture"] = measure_capture(plan, samples, dtype=settings.dtype, device=device)
    if "collect" in stages:
        found["collect"] = measure_collection(
            settings,
            tokens=max(1, counts.tokens // counts.samples),
            blocks=max(1, counts.blocks // counts.samples),
            device=device,
        )
    return found


def _samples(args: argparse.Namespace, settings: Settings) -> list[TokenSample]:
    encode = encoding_of(args, settings).encode
    samples = []
    for conversation in read_conversations(args.conversations, limit=_CONVERSATIONS):
        with contextlib.suppress(LeftOutError):
            samples.append(encode(conversation))
    if not samples:
        raise UserError(
            f"--measure: the first {_CONVERSATIONS} conversations give no sample; give "
            "--capture-tokens-per-second"
        )
    return samples


def measure_capture(
    plan: CapturePlan, samples: Sequence[TokenSample], *, dtype: str, device: str
) -> Measured:
    """Tokens a second: the target's forward pass, conversion, and files written beside the cache.

    The files go to a temporary folder there, which is removed.

    Raises:
        UserError: the target cannot be loaded, or nothing can be written there.
    """
    target = targets.load_model(
        plan.config.model.target_model_path,
        dtype="float32" if device == "cpu" else plan.dtype,
        device=device,
        trust_remote_code=plan.config.model.trust_remote_code,
    )
    extract = TransformersExtractor(target, plan.layers, with_last=plan.with_last)
    batches = list(batches_by_length([len(sample) for sample in samples], 8192))
    extract([samples[i] for i in batches[-1]])  # the first pass of a process is slow
    form = RecordFormat(
        layout=plan.layout,
        layers=len(plan.layers),
        width=len(plan.layers) * plan.hidden_size,
        keys=(),
        dtype=FLOAT8 if dtype == FP8 else getattr(torch, dtype),
    )
    home = nearest_folder(Path(plan.config.data.hidden_states_path))
    done = tokens = 0
    with writing(home):
        scratch = tempfile.TemporaryDirectory(dir=home, prefix=".estimate-")
    start = time.monotonic()
    with scratch as place:
        for batch in batches:
            chosen = [samples[i] for i in batch]
            for sample, found in zip(chosen, extract(chosen), strict=True):
                record = form.record(sample, found)
                if record is not None:
                    write_atomically(Path(place) / f"{done}.ckpt", record_bytes(record))
                done, tokens = done + 1, tokens + len(sample)
            if time.monotonic() - start > _SECONDS:
                break
        seconds = time.monotonic() - start
    source = (
        f"measured: {tokens:,} tokens of {done} conversations in {seconds:.1f} s on {device}, "
        f"files written to {home}"
    )
    return tokens / seconds, source


def measure_collection(settings: Settings, *, tokens: int, blocks: int, device: str) -> Measured:
    """Blocks a second: K passes of a drafter of this shape, with random weights and features.

    Args:
        tokens: context of a sample.
        blocks: of a sample, which are refined together.
    """
    if settings.run is None:
        raise UserError("--measure needs the drafter: name a run file with --config")
    config = settings.run.config
    drafter = untrained_drafter(
        config, device=device, blocks_per_group=settings.run.options.blocks_per_group
    )
    head = drafter.lm_head.weight
    features = torch.randn(tokens, settings.layers * settings.hidden).to(head)
    rule = CommitRule(
        drafter.mask_token_id, top_k=settings.top_k, every_pass=settings.record == "full"
    )

    def refine(count: int) -> None:
        anchors = torch.linspace(0, tokens - 1, count).long().to(head.device)
        rollout_blocks(
            drafter,
            features,
            anchors,
            torch.zeros_like(anchors),
            steps=settings.steps,
            rule=rule,
        )
        if device != "cpu":
            torch.cuda.synchronize()

    refine(1)  # the first pass of a process is slow
    few = min(2, blocks)
    pace = seconds_of(lambda: refine(few)) / few
    count = max(few, min(blocks, 512, int(_SECONDS / 2 / pace)))
    seconds, runs = 0.0, 0
    while runs == 0 or seconds + seconds / runs < _SECONDS / 2:
        seconds, runs = seconds + seconds_of(lambda: refine(count)), runs + 1
    source = (
        f"measured: {runs * count:,} blocks, {count} at a time, behind {tokens:,} tokens, in "
        f"{seconds:.1f} s on {device}; random weights of the draft config's shape"
    )
    return runs * count / seconds, source


def seconds_of(work: Callable[[], None]) -> float:
    """How long ``work`` takes."""
    start = time.monotonic()
    work()
    return time.monotonic() - start
