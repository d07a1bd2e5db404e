"""What an inspection may look up: the reference tokens in the cache, the tokens' texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specforge_dstill.console import say
from specforge_dstill.data import targets
from specforge_dstill.data.feature_files import read_tensors
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.refinement_text import visible
from specforge_dstill.maths.blocks import ReferenceBlocks, reference_blocks
from specforge_dstill.runfile import DEFAULT_PATH, load_run
from specforge_dstill.token_hash import token_hash
from specforge_dstill.trajectory_store import SampleRecord, StoreIdentity

Name = Callable[[int], str]


@dataclass(frozen=True)
class References:
    """The cache that a store was collected from."""

    folder: Path
    identity: StoreIdentity

    def blocks(self, record: SampleRecord) -> ReferenceBlocks:
        """The data's tokens of a record's blocks. UserError when the cache has others."""
        path = self.folder / record.sample_id
        if not path.is_file():
            raise UserError(
                f"{self.folder}: has no sample {record.sample_id}; it is not the cache that the "
                "store was collected from: name that one with --cache"
            )
        features = read_tensors(path)
        input_ids = features["input_ids"][: self.identity.max_length]
        if token_hash(input_ids) != record.token_hash:
            raise UserError(
                f"{path}: holds other tokens than the store was collected from; name the cache "
                "that it was collected from with --cache"
            )
        return reference_blocks(
            input_ids,
            features["loss_mask"][: self.identity.max_length],
            record.anchors,
            block_size=self.identity.block_size,
        )


@dataclass(frozen=True)
class Sources:
    """Where the references and the tokenizer are, None where nothing names them.

    ``asked`` tells which were named on the command line: those must be usable, others may.
    """

    cache: str | None
    tokenizer: str | None
    trust_remote_code: bool = False
    asked: frozenset[str] = frozenset()

    @classmethod
    def of(cls, *, config: str | None, cache: str | None, tokenizer: str | None) -> Sources:
        """From the options, and for what they leave open from the run file.

        Without ``--config`` a ``dstill.yaml`` in the current folder is read.
        """
        asked = {name for name, given in (("cache", cache), ("tokenizer", tokenizer)) if given}
        if config is None and not Path(DEFAULT_PATH).is_file():
            return cls(cache, tokenizer, asked=frozenset(asked))
        run = load_run(config, (), "dflash").config
        if config is not None:
            asked |= {"cache"}
        return cls(
            cache or run.data.hidden_states_path or None,
            tokenizer or run.model.target_model_path,
            trust_remote_code=run.model.trust_remote_code,
            asked=frozenset(asked),
        )

    def references(self, identity: StoreIdentity, first: SampleRecord | None) -> References | None:
        """The cache, tried on a first record; None, with a line that says why, without one."""
        without = "columns of the reference are left out"
        if self.cache is None:
            say(f"no reference tokens: {without}; name the feature cache with --cache")
            return None
        found = References(Path(self.cache), identity)
        try:
            if not found.folder.is_dir():
                raise UserError(
                    f"{self.cache}: no such folder; name the feature cache with --cache"
                )
            if first is not None:
                found.blocks(first)
        except UserError as error:
            if "cache" in self.asked:
                raise
            say(f"{error}; {without}")
            return None
        return found

    def name(self) -> Name:
        """What shows a token: its text when there is a tokenizer, else its id."""
        if self.tokenizer is None:
            return str
        try:
            tokenizer = targets.load_tokenizer(
                self.tokenizer, trust_remote_code=self.trust_remote_code
            )
        except UserError as error:
            if "tokenizer" in self.asked:
                raise
            say(f"{error}; tokens are shown as ids")
            return str
        return lambda token: visible(tokenizer.decode([token]))
