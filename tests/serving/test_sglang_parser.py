"""SGLang's own reading of an exported config, in both versions: its sources without GPU parts."""

from __future__ import annotations

import ast
import enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from tests import tiny
from tests.export.checkpoints import FULL, SLIDING, WINDOW, dspark_config, exported

pytestmark = pytest.mark.serving

OLD, NEW = "0.5.14", "0.5.23"
KINDS = {
    "full": tiny.draft_config(),
    "sliding": tiny.draft_config(layer_types=(SLIDING, SLIDING), window=WINDOW),
    "mixed": tiny.draft_config(layer_types=(SLIDING, FULL), window=WINDOW),
}


class AttentionType(enum.Enum):
    """SGLang's, of which only the names count here."""

    DECODER = "decoder"
    ENCODER_ONLY = "encoder_only"


class Struct:
    """msgspec's, as far as the parser uses it."""

    def __init_subclass__(cls, **_options: Any) -> None:
        pass

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def definitions(file: Path, into: dict[str, Any]) -> dict[str, Any]:
    """What of a source file can be had without SGLang's own packages."""
    for node in ast.parse(file.read_text()).body:
        # Annotations stay unread, as in the file itself.
        code = "from __future__ import annotations\n" + ast.unparse(node)
        try:
            exec(compile(code, str(file), "exec"), into)
        except (ImportError, NameError, AttributeError):
            continue  # SGLang's GPU parts, or what wants them
    return into


def sources(engines: Path, version: str) -> Path:
    return engines / f"sglang-{version}" / "sglang" / "srt"


def parser(engines: Path, version: str) -> dict[str, Any]:
    """The parser's functions by name, with those of the draft model that pick an attention."""
    # A dataclass wants the module that it is of.
    known = {"AttentionType": AttentionType, "__name__": __name__}
    found = definitions(sources(engines, version) / "speculative" / "dflash_utils.py", known)
    return definitions(sources(engines, version) / "models" / "dflash.py", found)


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("kind", KINDS)
def test_the_parser_finds_what_was_trained(
    tmp_path: Path, tiny_inputs: Path, engines: Path, kind: str, version: str
) -> None:
    found = parser(engines, version)
    config = AutoConfig.from_pretrained(exported(tmp_path, tiny_inputs, KINDS[kind]))
    parsed = found["parse_dflash_draft_config"](draft_hf_config=config)
    assert parsed.block_size == tiny.BLOCK_SIZE
    assert parsed.target_layer_ids == tiny.LAYERS
    assert parsed.num_target_layers == 4
    assert parsed.mask_token_id == tiny.MASK_ID
    assert parsed.num_hidden_layers == 2
    resolved = parsed.resolve_target_layer_ids(target_num_layers=4, draft_num_layers=2)
    assert resolved == tiny.LAYERS
    # SGLang keeps what lies to the left of a token; both versions need no word for these.
    attention = {
        "full_attention": (-1, AttentionType.ENCODER_ONLY),
        "sliding_attention": (WINDOW - 1, AttentionType.DECODER),
    }
    for index, layer in enumerate(config.layer_types):
        assert found["_get_dflash_layer_attention_params"](config, index) == attention[layer]


@pytest.mark.parametrize(
    ("version", "seen"), [(OLD, AttentionType.DECODER), (NEW, AttentionType.ENCODER_ONLY)]
)
def test_is_causal_is_read_by_the_newer_version_only(
    tmp_path: Path, tiny_inputs: Path, engines: Path, version: str, seen: AttentionType
) -> None:
    """What `export` says of such a drafter."""
    out = exported(tmp_path, tiny_inputs, {**KINDS["sliding"], "is_causal": False})
    found = parser(engines, version)
    config = AutoConfig.from_pretrained(out)
    assert found["_get_dflash_layer_attention_params"](config, 0) == (WINDOW - 1, seen)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_the_target_hands_out_the_outputs_of_those_layers(engines: Path, version: str) -> None:
    """SGLang captures before layer i: it adds 1 to our id, and the last layer has no next one."""
    text = (sources(engines, version) / "models" / "qwen3.py").read_text()
    assert "self.model.layers_to_capture = [val + 1 for val in layer_ids]" in text


def test_a_dspark_config_is_parsed(engines: Path, tmp_path: Path, tiny_inputs: Path) -> None:
    known = {**parser(engines, NEW), "msgspec": SimpleNamespace(Struct=Struct)}
    folder = sources(engines, NEW) / "speculative" / "dspark_components"
    found = definitions(folder / "dspark_config.py", known)
    config = AutoConfig.from_pretrained(exported(tmp_path, tiny_inputs, dspark_config()))
    parsed = found["parse_dspark_draft_config"](draft_hf_config=config)
    assert (parsed.gamma, parsed.markov_rank, parsed.markov_head_type) == (8, 4, "vanilla")
    assert parsed.target_layer_ids == tiny.LAYERS
    assert parsed.mask_token_id == tiny.MASK_ID
    assert found["get_dspark_sample_from_anchor"](config) is True
    runtime = found["resolve_runtime_config"](
        draft_hf_config=config, speculative_num_draft_tokens=9, target_vocab_size=tiny.VOCAB
    )
    assert runtime.verify_num_draft_tokens == 9
