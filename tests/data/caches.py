"""Caches for tests: made by capture from a tiny target, or file by file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from specforge.algorithms.builtin import builtin_algorithm_registry

from specforge_dstill.data.capture_core import capture_samples
from specforge_dstill.data.capture_transformers import Features
from specforge_dstill.data.chat import TokenSample
from specforge_dstill.data.manifest import CacheManifest

KEYS = ("input_ids", "loss_mask", "hidden_states")
LAYERS = (0, 2, 3)
WIDTH = 32 * len(LAYERS)


def layout(name: str = "dflash") -> Any:
    registration = builtin_algorithm_registry().resolve(name)
    return registration.providers.offline_for("text").capture_layout


def make_samples(lengths: Sequence[int], *, scored: int = 4) -> list[TokenSample]:
    stream = torch.Generator().manual_seed(0)
    samples = []
    for i, length in enumerate(lengths):
        mask = torch.zeros(length, dtype=torch.long)
        mask[-scored:] = 1
        ids = torch.randint(9, 60, (length,), generator=stream)
        samples.append(TokenSample(f"s{i}", ids, mask))
    return samples


def make_manifest(**changes: Any) -> CacheManifest:
    values: dict[str, Any] = {
        "target": "tiny", "target_hash": "0", "target_layer_ids": LAYERS, "strategy": "dflash",
        "keys": ("input_ids", "loss_mask", "hidden_states"), "width": WIDTH, "dtype": "float32",
        "chat_template": "tokenizer", "chat_template_hash": "0", "max_length": 64,
        "conversations": "c.jsonl", "conversations_hash": "0", "conversation_count": 7,
        "shard_size": 3,
    }  # fmt: skip
    return CacheManifest(**(values | changes))


def capture_here(folder: Path, samples: list[TokenSample], extract: Any, **options: Any) -> Any:
    manifest = options.pop("manifest", make_manifest())
    return capture_samples(
        samples,
        extract,
        layout=options.pop("layout", layout()),
        folder=folder,
        manifest=manifest,
        batch_tokens=32,
        **options,
    )


def made_up_states(samples: Sequence[TokenSample]) -> list[Features]:
    """What a target might give: normal states that depend on the sample alone."""
    return [
        Features(
            torch.randn(
                len(sample), WIDTH, generator=torch.Generator().manual_seed(int(sample.id[1:]))
            )
        )
        for sample in samples
    ]


def captured(folder: Path, *, dtype: str = "float32", samples: int = 7, **changes: Any) -> Path:
    """A finished capture in shards of three, of which the second conversation was left out."""
    made = make_samples([5 + index for index in range(samples)])
    made[1] = TokenSample("s1", made[1].input_ids, torch.tensor([0, 1, 0, 1, 0, 1]))
    scale = ("hidden_states_scale",) if dtype == "float8_e4m3fn" else ()
    manifest = make_manifest(
        dtype=dtype, keys=(*KEYS, *scale), conversation_count=samples, **changes
    )
    capture_here(folder, made, made_up_states, manifest=manifest)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def record(length: int = 6, width: int = 8, **changes: Any) -> dict[str, Any]:
    mask = torch.zeros(length, dtype=torch.long)
    mask[-3:] = 1
    made = {
        "input_ids": torch.arange(length),
        "loss_mask": mask,
        "hidden_states": torch.zeros(length, width),
    }
    return made | changes


def save(folder: Path, name: str, values: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(values, path)
    return path


class Planted:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)
