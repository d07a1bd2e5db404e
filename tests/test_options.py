"""The `dstill:` section: defaults of the paper, bounds, cross checks, one-line errors."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from specforge_dstill.errors import UserError
from specforge_dstill.options import DstillOptions, option_keys, parse_options
from specforge_dstill.validation import submodel


def message_of(section: object) -> str:
    with pytest.raises(UserError) as caught:
        parse_options(section)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_defaults_are_the_papers() -> None:
    options = parse_options(None)
    assert options.steps == 8
    assert options.collect.top_k == 16
    assert options.collect.commit == "greedy"
    student = options.student
    assert (student.alpha, student.p_root_start, student.p_root_end) == (0.2, 0.5, 0.85)
    assert (student.p_root_warmup, student.p_root_cooldown) == (0.10, 0.30)


def test_every_optional_weight_is_off_by_default() -> None:
    options = parse_options({})
    assert options.teacher.position_decay is None
    assert options.teacher.mask_count_alpha == 0
    assert options.student.first_mismatch_weight is None
    assert options.student.mismatch_decay is None


def test_every_field_has_a_description() -> None:
    def check(model: type[BaseModel]) -> None:
        for name, field in model.model_fields.items():
            section = submodel(field.annotation)
            if section is not None:
                check(section)
            else:
                assert field.description, name

    check(DstillOptions)


def test_frozen() -> None:
    options = parse_options({})
    with pytest.raises(ValidationError):
        options.student.alpha = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("section", "parts"),
    [
        ({"student": {"alpha": 1.5}}, ["dstill.student.alpha", "1.5", "at least 0", "at most 1"]),
        ({"student": {"alpha": float("nan")}}, ["dstill.student.alpha", "nan"]),
        ({"steps": 0}, ["dstill.steps", "0", "a whole number", "at least 1"]),
        ({"steps": "many"}, ["dstill.steps", "'many'", "a whole number"]),
        ({"collect": {"record": "all"}}, ["dstill.collect.record", "'all'", "commit, full"]),
        ({"collect": {"top_k": 0}}, ["dstill.collect.top_k", "at least 1"]),
        ({"teacher": {"position_decay": 0}}, ["dstill.teacher.position_decay", "above 0"]),
        ({"student": {"first_mismatch_weight": 0}}, ["first_mismatch_weight", "above 0", "null"]),
        ({"student": 3}, ["dstill.student", "3", "not a section"]),
        ([1], ["dstill", "not a section"]),
    ],
)
def test_a_bad_value_is_named_with_its_key_and_what_is_allowed(
    section: object, parts: list[str]
) -> None:
    text = message_of(section)
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("section", "suggested"),
    [
        ({"alhpa": 0.3}, "dstill.student.alpha"),
        ({"student": {"alhpa": 0.3}}, "dstill.student.alpha"),
        ({"student": {"top_k": 4}}, "dstill.collect.top_k"),
        ({"trajectoris": "x"}, "dstill.trajectories"),
        ({"collect": {"anchors_per_samples": 4}}, "dstill.collect.anchors_per_sample"),
    ],
)
def test_an_unknown_key_gets_the_nearest_name_of_any_section(
    section: dict[str, Any], suggested: str
) -> None:
    assert message_of(section).endswith(f"unknown option; did you mean {suggested}?")


def test_an_unknown_key_like_no_other_gets_no_suggestion() -> None:
    assert message_of({"zzzzqq": 1}) == "dstill.zzzzqq: unknown option"


@pytest.mark.parametrize(
    ("section", "part"),
    [
        ({"student": {"mismatch_decay": 0.5}}, "needs dstill.student.first_mismatch_weight"),
        ({"student": {"p_root_warmup": 0.7, "p_root_cooldown": 0.3}}, "must stay below 1"),
        ({"collect": {"temperature": 0.7}}, "needs dstill.collect.commit: sampled"),
        ({"student": {"teacher": "x"}}, "needs dstill.trajectories: online"),
    ],
)
def test_cross_checks(section: dict[str, Any], part: str) -> None:
    assert part in message_of(section)


def test_several_mistakes_are_counted() -> None:
    assert message_of({"steps": 0, "blocks_per_group": 0}).endswith("(1 more after this one)")


def test_text_of_the_command_line_is_read_as_the_fields_type() -> None:
    options = parse_options({"steps": "4", "student": {"alpha": "0.5"}})
    assert options.steps == 4
    assert options.student.alpha == 0.5


def test_flat_has_every_key_and_only_scalars() -> None:
    flat = parse_options({"student": {"alpha": 0.3}}).flat()
    sections = {f"dstill.{name}" for name in ("teacher", "collect", "student", "evaluation")}
    assert set(flat) == set(option_keys()) - sections - {"dstill"}
    assert flat["dstill.student.alpha"] == 0.3
    assert all(isinstance(v, bool | int | float | str | None) for v in flat.values())


def test_a_stages_contract_holds_its_own_options_and_k() -> None:
    contract = parse_options({"steps": 4}).contract("student")
    assert contract["dstill.steps"] == 4
    assert "dstill.student.p_root_end" in contract
    assert not any("collect" in name or "rows_per_tile" in name for name in contract)
    # A teacher is known by its weights, not by where they lie.
    assert "dstill.student.teacher" not in contract


def test_an_evaluation_scores_one_pass_and_k_unless_it_is_told() -> None:
    options = parse_options({"steps": 5})
    assert options.scored_passes == (1, 5)
    modes = ("dstill_teacher", "dstill_student", "dflash")
    assert [options.best_by(mode) for mode in modes] == [5, 1, 1]
    told = parse_options({"evaluation": {"passes": [4, 2, 4], "best_by": 2}})
    assert told.scored_passes == (2, 4)
    assert told.best_by("dstill_teacher") == 2


@pytest.mark.parametrize(
    ("section", "part"),
    [
        ({"best_by": 3}, "dstill.evaluation.best_by is 3, which is not scored; give one of"),
        ({"passes": []}, "dstill.evaluation.passes: [] is not allowed; give a list or null"),
        ({"passes": [0]}, "dstill.evaluation.passes.0: 0: Input should be"),
        ({"anchors_per_sample": 0}, "dstill.evaluation.anchors_per_sample: 0 is not allowed"),
    ],
)
def test_what_cannot_be_scored_is_refused(section: dict[str, Any], part: str) -> None:
    assert part in message_of({"evaluation": section})
