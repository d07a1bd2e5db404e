"""What a store is: the settings that made it, and how two of them differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from specforge_dstill.checksums import json_sha256
from specforge_dstill.errors import UserError
from specforge_dstill.files import json_bytes
from specforge_dstill.maths.block_shape import BlockShape
from specforge_dstill.trajectory_store.sharding import shard_count

IDENTITY_FILE = "identity.json"
FORMAT = "specforge_dstill.trajectories"
FORMAT_VERSION = 1

MAX_STEPS = int(np.iinfo(np.int8).max)
MAX_TOKEN_IDS = int(np.iinfo(np.int32).max)
LOGP_DTYPES = ("float16", "float32")


@dataclass(frozen=True)
class StoreIdentity:
    """The settings that decide what the records of a store hold.

    Attributes:
        block_size: B, the positions of a block.
        steps: K, the teacher's passes.
        top_k: k, ids retained a position and pass.
        record: "commit" keeps the committing pass of each position, "full" every pass.
        commit: "greedy" or "sampled".
        temperature: of sampled commitment.
        mask_token_id, vocab_size: of the target.
        max_length: tokens a sample is cut to.
        anchors_per_sample: at most so many anchors a sample; None keeps all valid ones.
        seed: of the anchors, and of sampled commitment.
        teacher_hash: of the teacher's weights.
        draft_config: the teacher's configuration.
        versions: of the libraries. Noted for each shard, never a reason to refuse one.
        cache: digest of what made the feature cache; "" where that is unknown, which is no reason
            to refuse a store either, and is then not written down.

    Raises: ``UserError`` for settings that the files cannot hold.
    """

    block_size: int
    steps: int
    top_k: int
    record: str
    commit: str
    temperature: float
    mask_token_id: int
    vocab_size: int
    max_length: int
    anchors_per_sample: int | None
    seed: int
    teacher_hash: str
    draft_config: dict[str, Any]
    versions: dict[str, str]
    cache: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_STEPS:
            raise UserError(f"steps={self.steps}: a trajectory store holds 1 to {MAX_STEPS} passes")
        if not 1 <= self.vocab_size <= MAX_TOKEN_IDS:
            raise UserError(
                f"vocab_size={self.vocab_size}: a trajectory store holds 32-bit token ids, "
                f"so at most {MAX_TOKEN_IDS} of them"
            )
        if self.record not in ("commit", "full"):
            raise UserError(f"record={self.record!r} is neither 'commit' nor 'full'")
        if not 0 <= self.top_k <= self.vocab_size:
            raise UserError(
                f"top_k={self.top_k} is not between 0 and the vocabulary's {self.vocab_size} tokens"
            )

    @property
    def passes(self) -> int:
        """T, the passes recorded: 1 or K."""
        return self.steps if self.record == "full" else 1

    @property
    def prediction_shift(self) -> int:
        """How many positions on the teacher's input slots predict, by its configuration."""
        return BlockShape.of({"block_size": self.block_size, **self.draft_config}).shift


@dataclass(frozen=True)
class StorePlan:
    """A store's identity and its division into shards; what ``identity.json`` holds.

    Attributes:
        identity: what the records hold.
        samples: how many samples.
        samples_hash: SHA-256 of their ids, in order.
        shard_size: samples a shard.
        logp_dtype: "float16" or "float32", of the log-probabilities on disk.
    """

    identity: StoreIdentity
    samples: int
    samples_hash: str
    shard_size: int
    logp_dtype: str

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise UserError(f"shard_size={self.shard_size}: a shard holds at least one sample")
        if self.logp_dtype not in LOGP_DTYPES:
            raise UserError(f"logp_dtype={self.logp_dtype!r} is none of {', '.join(LOGP_DTYPES)}")

    @classmethod
    def of_samples(
        cls,
        sample_ids: Sequence[str],
        *,
        identity: StoreIdentity,
        shard_size: int,
        logp_dtype: str,
    ) -> StorePlan:
        """The plan of a store of these samples. Raises: ``ValueError`` for ids that cannot be."""
        if len(set(sample_ids)) != len(sample_ids):
            raise ValueError("a sample id appears twice")
        if any("\n" in sample_id for sample_id in sample_ids):
            raise ValueError("a sample id holds a line break")
        return cls(
            identity=identity,
            samples=len(sample_ids),
            samples_hash=samples_hash(sample_ids),
            shard_size=shard_size,
            logp_dtype=logp_dtype,
        )

    def in_store_of(self, held: StorePlan) -> StorePlan:
        """This plan with what a store that goes by ``held`` says of its cache, known or not."""
        return replace(self, identity=replace(self.identity, cache=held.identity.cache))

    @property
    def shards(self) -> int:
        return shard_count(self.samples, self.shard_size)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what two runs must share for their shards to fit together."""
        content = self.to_json()
        del content["identity"]["versions"]
        return json_sha256(content)

    def to_json(self) -> dict[str, Any]:
        """A document that survives JSON unchanged."""
        document = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        if not self.identity.cache:  # stores made before there was this setting lack it
            del document["identity"]["cache"]
        normal: dict[str, Any] = json.loads(json_bytes(document))  # tuples become lists
        return normal

    @classmethod
    def from_json(cls, document: Any) -> StorePlan:
        """The inverse of :meth:`to_json`. Raises: ``ValueError`` when it is not one."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError("it does not describe a trajectory store")
        if document.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"format version {document.get('format_version')} is not {FORMAT_VERSION}"
            )
        try:
            own = {field.name: document[field.name] for field in fields(cls)}
            own["identity"] = StoreIdentity(**own["identity"])
            return cls(**own)
        except (KeyError, TypeError, UserError) as error:
            raise ValueError(f"its fields are not those of a trajectory store ({error})") from error

    def settings(self) -> dict[str, Any]:
        """Identity and division as one flat mapping of named settings."""
        document = self.to_json()
        return {
            **document["identity"],
            "cache": self.identity.cache,
            "prediction_shift": self.identity.prediction_shift,
            "samples": self.samples,
            "samples_hash": self.samples_hash,
            "shard_size": self.shard_size,
            "logp_dtype": self.logp_dtype,
        }


def samples_hash(sample_ids: Sequence[str]) -> str:
    """SHA-256 (hex) of a list of sample ids."""
    digest = hashlib.sha256()
    for sample_id in sample_ids:
        digest.update(sample_id.encode() + b"\n")
    return digest.hexdigest()
