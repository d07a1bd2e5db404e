"""Stand-ins of the paper's four kinds of target go through capture, every stage and export."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from specforge_dstill.cli import main
from specforge_dstill.data.feature_files import read_tensors
from specforge_dstill.maths.rollout import CommitRule
from specforge_dstill.modes.assembly import load_drafter
from specforge_dstill.modes.drafter import rollout_blocks
from specforge_dstill.runfile import load_run
from specforge_dstill.trajectory_store import TrajectoryStore
from tests import tiny
from tests.modes.running import train, write_run
from tests.stand_ins import STAND_INS, save_stand_in

WORDS = tiny.WORDS[3:]
#: What the paper's drafter of that target attends with.
SLIDING = {"Gemma4ForConditionalGeneration", "NemotronHForCausalLM"}


@dataclass(frozen=True)
class Trained:
    """A folder in which a stand-in was captured, taught, collected, distilled and exported."""

    architecture: str
    folder: Path
    target: Any


def write_conversations(path: Path, *, count: int = 4) -> Path:
    """Questions and answers of the tiny tokenizer's words."""
    lines = []
    for row in range(count):
        words = [WORDS[(7 * row + 3 * i) % len(WORDS)] for i in range(24)]
        messages = [
            {"role": "user", "content": " ".join(words[:4])},
            {"role": "assistant", "content": " ".join(words[4:])},
        ]
        lines.append(json.dumps({"id": f"c{row}", "conversations": messages}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_recipe(folder: Path, architecture: str) -> None:
    """The run file and the draft config, in the shape of configs/."""
    kinds = ("sliding_attention",) * 2 if architecture in SLIDING else ("full_attention",) * 2
    told = {"is_causal": False} if architecture in SLIDING else {}
    tiny.write_json(folder / "draft.json", {**tiny.draft_config(layer_types=kinds), **told})
    write_run(folder, folder, model__embedding_key=STAND_INS[architecture][1])


@pytest.fixture(scope="module", params=list(STAND_INS))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    architecture = request.param
    folder = tmp_path_factory.mktemp("stand-in")
    target = save_stand_in(architecture, folder / "target")
    write_recipe(folder, architecture)
    write_conversations(folder / "answers.jsonl")
    with contextlib.chdir(folder):
        assert main(["capture", "--conversations", "answers.jsonl"]) == 0
    for mode in ("dstill_teacher", "dstill_collect", "dstill_student"):
        steps = () if mode == "dstill_collect" else ("training.max_steps=1",)
        outcome = train(folder, mode, *steps)
        assert outcome.status == 0, outcome.err
    with contextlib.chdir(folder):
        words = ["export", "--checkpoint", "out/student", "--output-dir", "exported"]
        assert main(words) == 0
    return Trained(architecture, folder, target)


def test_capture_takes_the_states_that_the_target_has(trained: Trained) -> None:
    """Alone and unpadded, by transformers' own output; the capture's batch was padded."""
    for path in sorted(trained.folder.glob("cache/data/*/*.ckpt")):
        found = read_tensors(path)
        with torch.inference_mode():
            states = trained.target(
                found["input_ids"][None], output_hidden_states=True
            ).hidden_states
        expected = torch.cat([states[layer + 1][0] for layer in tiny.LAYERS], dim=-1)
        torch.testing.assert_close(found["hidden_states"], expected, atol=1e-4, rtol=1e-4)


def test_the_drafter_reads_the_targets_embeddings_and_head(trained: Trained) -> None:
    with contextlib.chdir(trained.folder):
        config = load_run("dstill.yaml", (), "dstill_student").config
        drafter = load_drafter(config, "out/student", device=torch.device("cpu"))
    ids = torch.arange(tiny.VOCAB)
    with torch.inference_mode():
        embedded = trained.target.get_input_embeddings()(ids)
        assert torch.equal(drafter.embed_tokens(ids), embedded)
        logits = trained.target.get_output_embeddings()(embedded)
        cap = drafter.logit_softcap
        expected = logits if cap is None else cap * torch.tanh(logits / cap)
        torch.testing.assert_close(drafter.head()(embedded), expected)
    assert (cap == 30.0) is trained.architecture.startswith("Gemma")


def test_collection_and_evaluation_run_the_same_drafter(trained: Trained) -> None:
    """What the run of a mode builds gives the blocks that evaluation's own loading gives."""
    store = TrajectoryStore.open(trained.folder / "traj")
    with contextlib.chdir(trained.folder):
        config = load_run("dstill.yaml", (), "dstill_collect").config
        teacher = load_drafter(config, "out/teacher", device=torch.device("cpu"))
    for path in sorted(trained.folder.glob("cache/data/*/*.ckpt")):
        found = read_tensors(path)
        record = store.record_for(f"data/00000/{path.name}", found["input_ids"])
        again = rollout_blocks(
            teacher,
            found["hidden_states"],
            record.anchors,
            found["input_ids"][record.anchors],
            steps=3,
            rule=CommitRule(tiny.MASK_ID, top_k=8),
        )
        assert torch.equal(record.trajectory.endpoint, again.endpoint)
        assert torch.equal(record.trajectory.commit_pass, again.commit_pass)


def test_export_tells_the_engines_how_a_block_is_read(trained: Trained) -> None:
    config = json.loads((trained.folder / "exported/config.json").read_text(encoding="utf-8"))
    assert config["is_causal"] is False
    assert config["dflash_config"]["target_layer_ids"] == tiny.LAYERS
    assert config["dflash_config"]["mask_token_id"] == tiny.MASK_ID
