"""Run files: reading, merging by mode, overrides, and what is said when they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from specforge_dstill.errors import UserError
from specforge_dstill.mode_names import ALL_MODES
from specforge_dstill.runfile import RunFile, load_run, merge, read_document
from specforge_dstill.starter import template

BASE: dict[str, Any] = {
    "model": {"target_model_path": "./target", "draft_model_config": "./draft.json"},
    "data": {"hidden_states_path": "./cache"},
    "training": {"num_epochs": 2, "learning_rate": 1e-3},
    "dstill": {"steps": 4, "student": {"alpha": 0.3}},
    "modes": {
        "dstill_teacher": {"training": {"num_epochs": 10}},
        "dstill_student": {
            "training": {"num_epochs": 3},
            "dstill": {"student": {"p_root_end": 0.9}},
            "model": {"draft_checkpoint_path": "./teacher"},
        },
        "dflash": None,
    },
}


def write(folder: Path, document: object, name: str = "dstill.yaml") -> str:
    path = folder / name
    text = json.dumps(document) if name.endswith(".json") else yaml.safe_dump(document)
    path.write_text(text, encoding="utf-8")
    return str(path)


def load(folder: Path, document: object, *overrides: str, mode: str | None = "dflash") -> RunFile:
    return load_run(write(folder, document), overrides, mode)


def message_of(folder: Path, document: object, *overrides: str, mode: str | None = "dflash") -> str:
    with pytest.raises(UserError) as caught:
        load(folder, document, *overrides, mode=mode)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_merge_changes_neither_side() -> None:
    base = {"a": {"x": 1, "y": [1]}, "b": 1}
    over = {"a": {"y": [2]}, "b": {"c": 1}}
    assert merge(base, over) == {"a": {"x": 1, "y": [2]}, "b": {"c": 1}}
    assert base == {"a": {"x": 1, "y": [1]}, "b": 1}


@pytest.mark.parametrize("name", ["dstill.yaml", "dstill.json"])
def test_the_last_word_wins(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, BASE, name)
    assert load_run(path, (), "dflash").config.training.num_epochs == 2
    assert load_run(path, (), "dstill_teacher").config.training.num_epochs == 10
    over = load_run(path, ("training.num_epochs=7",), "dstill_teacher")
    assert over.config.training.num_epochs == 7
    assert over.config.training.learning_rate == 1e-3


def test_a_modes_part_reaches_every_section(tmp_path: Path) -> None:
    run = load(tmp_path, BASE, mode="dstill_student")
    assert run.config.model.draft_checkpoint_path == "./teacher"
    assert run.config.model.draft_model_config == "./draft.json"
    assert (run.options.student.alpha, run.options.student.p_root_end) == (0.3, 0.9)
    assert load(tmp_path, BASE).config.model.draft_checkpoint_path is None


def test_the_teacher_of_an_online_student_survives_a_resume(tmp_path: Path) -> None:
    """SpecForge takes no start beside a resume; what rolls out is still what the file names."""
    online = "dstill.trajectories=online"
    resume = "training.resume_from=./out"
    for words in ((online,), (online, resume)):
        run = load(tmp_path, BASE, *words, mode="dstill_student")
        assert run.teacher == run.options.student.teacher == "./teacher"
    assert run.config.model.draft_checkpoint_path is None
    named = load(
        tmp_path, BASE, online, resume, "dstill.student.teacher=other", mode="dstill_student"
    )
    assert named.teacher == "other"
    assert load(tmp_path, BASE, mode="dstill_student").teacher is None
    assert load(tmp_path, BASE, online, mode="dstill_teacher").teacher is None


def test_overrides_reach_our_options(tmp_path: Path) -> None:
    run = load(
        tmp_path,
        BASE,
        "dstill.student.alpha=0.7",
        "dstill.collect.anchors_per_sample=null",
        "dstill.teacher={position_decay: 7}",
    )
    assert run.options.student.alpha == 0.7
    assert run.options.steps == 4
    assert run.options.collect.anchors_per_sample is None
    assert run.options.teacher.position_decay == 7


def test_overrides_may_supply_what_the_file_lacks(tmp_path: Path) -> None:
    document = {"model": {"target_model_path": "./target"}}
    run = load(tmp_path, document, "data.hidden_states_path=./here", "run_id=12")
    assert run.config.data.hidden_states_path == "./here"
    assert run.config.run_id == "12"


def test_override_values_take_the_fields_type(tmp_path: Path) -> None:
    run = load(
        tmp_path,
        BASE,
        "training.learning_rate=3e-4",
        "model.aux_hidden_state_layer_ids=[1, 2, 3]",
        "tracking.report_to=tensorboard",
        "profiling.enabled=true",
    )
    assert run.config.training.learning_rate == 3e-4
    assert run.config.model.aux_hidden_state_layer_ids == [1, 2, 3]
    assert run.config.profiling.enabled is True


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_mode_names_the_strategy_and_the_run(tmp_path: Path, mode: str) -> None:
    run = load(tmp_path, BASE, mode=mode)
    assert run.config.training.strategy == run.mode == run.config.run_id == mode
    assert load(tmp_path, BASE, "run_id=mine", mode=mode).config.run_id == "mine"


def test_without_a_mode_the_files_strategy_counts(tmp_path: Path) -> None:
    document = merge(BASE, {"training": {"strategy": "dstill_teacher"}})
    assert load(tmp_path, document, mode=None).config.training.num_epochs == 10
    assert "give --mode with one of" in message_of(tmp_path, BASE, mode=None)


def test_explicit_keys_are_those_that_someone_wrote(tmp_path: Path) -> None:
    run = load(tmp_path, BASE, "training.seed=1", mode="dstill_student")
    assert {"training.seed", "model.draft_checkpoint_path", "training.num_epochs"} <= run.explicit
    assert "training.attention_backend" not in run.explicit


def test_no_file_names_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no run file dstill\.yaml.*specforge-dstill init"):
        load_run(None, (), "dflash")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "model:\n  x: [1\ndata: 2\n", "a.yaml, line 3: not YAML"),
        ("a.yaml", "model: {}\n\tdata: 1\n", "a.yaml, line 2: not YAML"),
        ("a.yaml", "data: {a: 1}\nmodel:\n  x: 1\n  x: 2\n", "line 4: x is given a second time"),
        ("a.yaml", "model: {}\ndata:\n  on: 1\n", "a.yaml, line 3: YAML reads the key on as bool"),
        ("a.json", '{"model": {},\n "data" 1}', "a.json, line 2: not JSON"),
        ("a.yaml", "", "a run file holds sections"),
        ("a.yaml", "- 1\n- 2\n", "a run file holds sections"),
    ],
)
def test_malformed_files_name_the_line(tmp_path: Path, name: str, text: str, expected: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_document(str(path))
    assert expected in str(caught.value)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00model")
    for path in (tmp_path / "a.yaml", tmp_path):
        with pytest.raises(UserError, match="cannot read the run file"):
            read_document(str(path))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"dstill": {"alhpa": 1}}, ["dstill.alhpa", "did you mean dstill.student.alpha?"]),
        ({"training": {"alpha": 1}}, ["training.alpha", "dstill.student.alpha"]),
        ({"trainig": {"seed": 1}}, ["trainig", "unknown option"]),
        ({"training": {"num_epoch": 1}}, ["did you mean training.num_epochs?"]),
        ({"training": {"num_epochs": 0}}, ["training.num_epochs: 0", "above 0"]),
        ({"training": {"lr_scheduler": "linear"}}, ["'linear'", "one of cosine, constant"]),
        ({"training": []}, ["training: [] is not a section of options"]),
        ({"model": "x"}, ["model: 'x' is not a section of options"]),
        ({"dstill": 3}, ["dstill: 3 is not a section of options"]),
        ({"data": {"prompts_path": "x"}}, ["data: set exactly one of"]),
        ({"modes": {"dstill_student": 3}}, ["modes.dstill_student", "not a section"]),
        ({"modes": {"dstill_stdent": {}}}, ["unknown mode", "did you mean dstill_student?"]),
        ({"modes": [1]}, ["modes: holds one part for each mode"]),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, change: dict[str, Any], parts: list[str]) -> None:
    text = message_of(tmp_path, merge(BASE, change))
    for part in ("dstill.yaml: ", *parts):
        assert part in text


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    document = {"model": {}, "data": BASE["data"]}
    assert "model.target_model_path: is required" in message_of(tmp_path, document)


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("dstill.student.alpah=1", "did you mean dstill.student.alpha?"),
        ("dstill.student.alpha=2", "dstill.student.alpha: '2' is not allowed; give a number"),
        ("alpha=1", "did you mean dstill.student.alpha?"),
        ("training.learning_rte=1", "did you mean training.learning_rate?"),
        ("training.learning_rate", "not of the form section.field=value"),
        ("training.strategy=dflash", "give --mode instead"),
        ("modes={}", "unknown option"),
        ("model.aux_hidden_state_layer_ids=[1", "not a YAML list"),
    ],
)
def test_mistakes_in_overrides(tmp_path: Path, override: str, part: str) -> None:
    assert part in message_of(tmp_path, BASE, override)


def test_an_unknown_mode_lists_the_modes_and_the_nearest(tmp_path: Path) -> None:
    text = message_of(tmp_path, BASE, mode="dstill_techer")
    assert "did you mean dstill_teacher?" in text
    assert all(mode in text for mode in ALL_MODES)


@pytest.mark.parametrize("mode", ["dflash", "dstill_teacher", "dstill_collect", "dstill_student"])
def test_the_template_of_init_loads(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "dstill.yaml"
    path.write_text(
        template(target="Org/Model: 7B", draft_config="d.json", cache="c"), encoding="utf-8"
    )
    run = load_run(str(path), (), mode)
    assert run.config.model.target_model_path == "Org/Model: 7B"
    assert run.config.data.hidden_states_path == "c"
    assert load_run(str(path), (), "dstill_student").config.training.num_epochs == 3
    # All as by default, but the baseline's position weights, and no more blocks than a step draws.
    recommended = {
        "dstill.teacher.position_decay": 7.0,
        "dstill.collect.anchors_per_sample": 512,
    }
    assert run.options.flat() == type(run.options)().flat() | recommended
    assert set(run.options.flat()) <= run.explicit
