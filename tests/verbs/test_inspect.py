"""`inspect`: a cache and a store are told apart, counted right, and a block is drawn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from specforge_dstill.cli import main
from specforge_dstill.data.feature_files import load_features
from specforge_dstill.maths.anchors import valid_anchors
from specforge_dstill.maths.blocks import reference_blocks
from specforge_dstill.trajectory_store import open_store
from specforge_dstill.trajectory_store.cache import CACHE_VARIABLE
from tests import tiny
from tests.data.caches import captured
from tests.verbs.conftest import STEPS, RunVerb, collect

Said = Callable[..., str]


@pytest.fixture
def said(run_verb: RunVerb) -> Said:
    """Runs `inspect` in a folder of its own; gives what it printed, or its error line."""
    return partial(run_verb, "inspect")


def statistics(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)["statistics"]
    return found


def test_a_stores_statistics_are_those_of_its_records(
    said: Said, tiny_store: Path, tiny_inputs: Path
) -> None:
    found = statistics(said("--json", "--cache", tiny_inputs / "cache", tiny_store))
    store = open_store(str(tiny_store))
    agreed, scored, passes = torch.zeros(7), torch.zeros(7), torch.zeros(7)
    blocks = 0
    for sample_id in store.sample_ids:
        record, features = store[sample_id], load_features(tiny_inputs / "cache" / sample_id)
        reference = reference_blocks(
            features["input_ids"], features["loss_mask"], record.anchors, block_size=8
        )
        match = (record.trajectory.endpoint == reference.tokens) & reference.scored
        agreed += match[:, 1:].sum(0)
        scored += reference.scored[:, 1:].sum(0)
        passes += record.trajectory.commit_pass[:, 1:].sum(0)
        blocks += len(record.anchors)
    assert found["blocks"] == blocks == 72
    assert found["agreement"] == pytest.approx((agreed / scored).tolist())
    assert found["mean_commit_pass"] == pytest.approx((passes / blocks).tolist())
    assert sum(found["accepted"]) == blocks


def test_without_a_cache_the_columns_of_the_reference_are_left_out(
    said: Said, tiny_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_store)]) == 0
    shown = capsys.readouterr()
    assert "left out" in shown.err
    assert "--cache" in shown.err
    assert "agrees" not in shown.out
    assert "commit pass" in shown.out
    assert "12 samples, 72 blocks" in shown.out
    assert "block_size 8" in shown.out
    assert statistics(said("--json", tiny_store))["agreement"] is None


def test_limit(said: Said, tiny_store: Path) -> None:
    assert statistics(said("--json", "--limit", "2", tiny_store))["blocks"] == 12


def test_a_block_is_drawn_with_the_targets_words(
    said: Said, tiny_store: Path, tiny_inputs: Path
) -> None:
    sample, block = "data/00000/00000003.ckpt", "2"
    text = said(
        *("--cache", tiny_inputs / "cache", "--tokenizer", tiny_inputs / "target"),
        *("--sample", sample, "--block", block, tiny_store),
    )
    record = open_store(str(tiny_store))[sample]
    lines = text.splitlines()
    assert lines[0].startswith(f"{sample}, block 2: anchor at token {int(record.anchors[2])}, ")
    words = [*tiny.SPECIAL, *tiny.WORDS]
    last = next(line for line in lines if line.startswith(f"pass {STEPS}"))
    assert last.split()[2:] == [words[i] for i in record.trajectory.endpoint[2].tolist()]
    assert any(line.startswith("reference") for line in lines)
    assert "\x1b" not in text  # not a terminal


def test_a_block_as_ids_and_as_json(said: Said, tiny_store: Path) -> None:
    words = ("--sample", "data/00000/00000003.ckpt", "--block", "2", tiny_store)
    endpoint = open_store(str(tiny_store))[words[1]].trajectory.endpoint[2].tolist()
    last = next(line for line in said(*words).splitlines() if line.startswith(f"pass {STEPS}"))
    assert last.split()[2:] == [str(token) for token in endpoint]
    found = json.loads(said("--json", *words))
    assert found["endpoint"] == endpoint
    assert len(found["passes"]) == STEPS


def test_what_every_pass_believed_is_shown_where_it_was_recorded(
    said: Said, tmp_path: Path, tiny_inputs: Path
) -> None:
    folder = tmp_path / "full"
    collect(folder, tiny_inputs / "cache", record="full")
    assert "(" in said("--block", "0", folder)
    found = statistics(said("--json", "--cache", tiny_inputs / "cache", folder))
    assert found["root_acceptance_length"] >= 1


def test_a_figure(said: Said, tiny_store: Path) -> None:
    said("--png", "block.png", tiny_store)
    assert Path("block.png").read_bytes().startswith(b"\x89PNG")
    assert "--png block.bmpp" in said("--png", "block.bmpp", tiny_store, status=2)
    assert "cannot be written" in said("--png", "no/block.png", tiny_store, status=2)
    Path("figures").mkdir()
    assert "--png figures: is a folder" in said("--png", "figures", tiny_store, status=2)
    assert not Path("figures.png").exists()
    said("--png", "figures/one", tiny_store)
    assert [path.name for path in Path("figures").iterdir()] == ["one.png"]


def test_the_figure_that_was_written_is_named(
    said: Said, tiny_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said("--json", tiny_store)
    assert main(["inspect", "--png", "one", str(tiny_store)]) == 0
    assert "wrote one.png" in capsys.readouterr().err
    assert main(["inspect", "--png", "no/one.png", str(tiny_store)]) == 2
    assert capsys.readouterr().out == ""


def test_the_run_file_names_cache_and_target(
    said: Said, tiny_store: Path, tiny_inputs: Path
) -> None:
    document = {
        "model": {
            "target_model_path": str(tiny_inputs / "target"),
            "draft_model_config": str(tiny_inputs / "draft.json"),
        },
        "data": {"hidden_states_path": str(tiny_inputs / "cache")},
    }
    Path("run.yaml").write_text(yaml.safe_dump(document))
    text = said("--config", "run.yaml", tiny_store)
    assert "agrees %" in text
    assert "w" in next(line for line in text.splitlines() if line.startswith("reference"))
    Path("dstill.yaml").write_text(yaml.safe_dump(document))
    assert said(tiny_store) == text


def test_another_cache_is_refused_if_it_was_named(
    said: Said, tiny_store: Path, tmp_path: Path
) -> None:
    other = tiny.save_features(tmp_path / "other", samples=12, seed=5)
    assert "other tokens" in said("--cache", other, tiny_store, status=2)
    (tmp_path / "none").mkdir()
    assert "has no sample" in said("--cache", tmp_path / "none", tiny_store, status=2)
    for name in ("nowhere", "no/such/target"):
        line = said("--block", "0", "--tokenizer", name, tiny_store, status=2)
        assert f"{name}: no such folder" in line
        assert line.count("\n") == 2  # the other one: there are no reference tokens
    assert "nowhere: no such folder" in said("--cache", "nowhere", tiny_store, status=2)


def test_a_collection_that_is_not_finished(said: Said, tmp_path: Path, tiny_inputs: Path) -> None:
    folder = tmp_path / "running"
    collect(folder, tiny_inputs / "cache", finished=False)
    text = said(folder)
    assert "not finished: 2 of 3 shards" in text
    assert "8 samples, 48 blocks" in text
    assert json.loads(said("--json", folder))["complete"] is False


def test_a_store_elsewhere_by_its_url(
    said: Said,
    tiny_store: Path,
    tiny_inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    memory_files: None,
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "shards"))
    collect("memory://inspected", tiny_inputs / "cache")
    words = ("--json", "--cache", tiny_inputs / "cache")
    assert statistics(said(*words, "memory://inspected")) == statistics(said(*words, tiny_store))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sample", "nothing"], "its first is data/00000/00000000.ckpt"),
        (["--block", "6"], "no block 6"),
        (["--sample", "data/00000/00000001.ckpt", "--block", "6"], "it has 6"),
        (["--block", "-1"], "-1 is not 0 or more"),
    ],
)
def test_a_block_that_is_not_there(
    said: Said, tiny_store: Path, words: list[str], message: str
) -> None:
    assert message in said(*words, tiny_store, status=2)


def test_a_store_without_its_identity_file_is_still_a_store(
    said: Said, tiny_store: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(tiny_store, tmp_path / "copy")
    (copy / "identity.json").unlink()
    assert "trajectory store" in said(copy)


def test_a_cache_without_a_manifest_is_counted_by_its_files(said: Said, tiny_inputs: Path) -> None:
    cache = tiny_inputs / "cache"
    text = said(cache)
    assert "without a manifest" in text
    assert "float32, 64 wide" in text
    found = json.loads(said("--json", cache))["contents"]
    files = sorted(cache.rglob("*.ckpt"))
    masks = [load_features(file)["loss_mask"] for file in files]
    assert found["files"] == len(files) == 12
    assert found["bytes"] == sum(file.stat().st_size for file in files)
    assert found["tokens"] == sum(map(len, masks))
    assert found["scored"] == sum(int(mask.sum()) for mask in masks)
    assert found["anchors"] == sum(len(valid_anchors(mask)) for mask in masks)
    assert (found["shortest"], found["longest"]) == (40, 51)
    assert found["lengths_up_to"] == {"64": 12}
    assert json.loads(said("--json", "--limit", "5", cache))["contents"]["files"] == 5


def test_a_manifest_says_how_a_cache_was_made(said: Said, tmp_path: Path) -> None:
    made = {"temperature": 0.7, "template_kwargs": {"enable_thinking": False}, "versions": {}}
    cache = captured(tmp_path / "cache", generation=made)
    text = said(cache)
    assert "feature cache, complete" in text
    assert "target_layer_ids (0, 2, 3)" in text
    assert "temperature 0.7, template_kwargs {'enable_thinking': False}" in text
    assert "7 conversations, 1 left out: no two neighbouring scored tokens" in text
    found = json.loads(said("--json", cache))
    assert found["manifest"]["generation"] == made
    (cache / "manifest.json").unlink()
    assert "the capture is not finished: 3 of 3 shards entered" in said(cache)
    (cache / "shards/00001.jsonl").unlink()
    assert "the capture is not finished: 2 of 3 shards entered" in said(cache)


def test_a_cache_that_lost_something_is_not_complete(said: Said, tmp_path: Path) -> None:
    cache = captured(tmp_path / "cache")
    assert "states are not looked at here; specforge-dstill verify reads everything" in said(cache)
    content = (cache / "data/00000/00000002.ckpt").read_bytes()
    (cache / "data/00000/00000002.ckpt").unlink()
    lost = "1 of 6 files are missing (first: data/00000/00000002.ckpt)"
    assert f"feature cache, {lost}\n" in said(cache)
    assert json.loads(said("--json", cache))["state"] == lost
    (cache / "data/00000/00000002.ckpt").write_bytes(content[:-1])
    main(["verify", "--repair", str(cache)])
    assert "the capture is not finished: 2 of 3 shards entered" in said(cache)


def test_damaged_files_of_a_cache_are_named_and_the_rest_is_counted(
    said: Said, tmp_path: Path
) -> None:
    cache = tiny.save_features(tmp_path / "cache", samples=4)
    (cache / "data/00000/00000002.ckpt").write_bytes(b"cut short")
    text = said(cache)
    assert "1 files that cannot be read" in text
    assert "00000002.ckpt" in text
    assert json.loads(said("--json", cache))["contents"]["tokens"] == 40 + 41 + 43


def test_what_is_neither(said: Said, tmp_path: Path, tiny_inputs: Path) -> None:
    assert "no such file or folder" in said("nowhere", status=2)
    (tmp_path / "empty").mkdir()
    assert "neither a feature cache" in said("empty", status=2)
    (tmp_path / "answers.jsonl").write_text("{}")
    assert "answers.jsonl: is a file, not a cache or a store" in said("answers.jsonl", status=2)
    captured(tmp_path / "work/one")
    tiny.save_features(tmp_path / "work", samples=1)
    assert "name one of: work/one" in said("work", status=2)
    assert "--block is for a trajectory store" in said(
        "--block", "0", tiny_inputs / "cache", status=2
    )
