"""The file: what it may say, and one line for what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from specforge_dstill.ablations.grid import Mode, read_grid
from specforge_dstill.errors import UserError
from tests.ablations.grids import VARIANTS, grid


def test_a_variant_comes_after_the_one_it_starts_from(tmp_path: Path) -> None:
    names = [name for name, _ in grid(tmp_path).ordered()]
    assert names == ["teacher", "student", "student-ce", "student-k2", "dflash", "dflash-more"]


def test_options_stand_beside_the_words_of_a_variant(tmp_path: Path) -> None:
    variants = grid(tmp_path).variants
    assert variants["dflash-more"].options == {"training.num_epochs": 1}
    assert (variants["dflash-more"].start, variants["dflash-more"].passes) == ("dflash", [1])
    assert variants["student"].mode == "dstill_student"


def one(**variant: Any) -> dict[str, Any]:
    return {**VARIANTS, "mine": variant}


MISTAKES = [
    ({"variants": None}, "variants: is required"),
    ({"evaluate": None}, "evaluate: is required"),
    ({"evaluate": {"prompts": {}}}, "evaluate.prompts"),
    ({"sedes": [1]}, "sedes: unknown option; did you mean seeds?"),
    ({"seeds": [1, 1]}, "names one twice"),
    ({"jobs": 0}, "jobs: 0 is not allowed"),
    ({"reference": "other"}, "there is no variant other"),
    (
        {"variants": {**VARIANTS, "student": {"from": "teacher", "passes": [2]}}},
        "reference: others are set against one pass of student; add 1",
    ),
    ({"variants": one(form="teacher")}, "variants.mine.form: unknown option; did you mean"),
    ({"variants": one(mode="eagle3")}, "'dflash', 'dspark', 'dstill_teacher' or 'dstill_student'"),
    ({"variants": one()}, "variants.mine.from: name the variant whose records it learns"),
    ({"variants": one(**{"from": "nobody"})}, "variants.mine.from: there is no variant nobody"),
    ({"variants": one(**{"from": "mine"})}, "mine <- mine"),
    ({"variants": {**VARIANTS, "a/b": {"from": "teacher"}}}, "a/b"),
    ({"variants": {**VARIANTS, "student": [1]}}, "student"),
    ({"variants": one(**{"from": "teacher", "run_id": "x"})}, "run_id cannot be set in a variant"),
    ({"variants": one(**{"from": "teacher", "training.seed": 1})}, "give seeds:"),
    ({"variants": one(**{"from": "teacher", "dstill.trajectories": "x"})}, "only online"),
    ({"variants": {**VARIANTS, "mine": None}}, "None is no variant"),
    ({"variants": {**VARIANTS, "results": {"mode": "dflash"}}}, "a folder of ours"),
    ({"variants": {**VARIANTS, "records-teacher": {"mode": "dflash"}}}, "a folder of ours"),
    ({"variants": {**VARIANTS, "n" * 300: {"mode": "dflash"}}}, "at most 100"),
    (
        {"variants": {**VARIANTS, 7: {"mode": "dflash"}}},
        "reads the key 7 as int, not as text; quote it",
    ),
    ({"variants": {**VARIANTS, True: {"mode": "dflash"}}}, "reads the key true as bool"),
    ({"evaluate": {"prompts": {1: "one.jsonl"}}}, "YAML reads the key 1 as int"),
    ({"variants": one(mode="dflash", dstill={"student": {}})}, "such as dstill.student:"),
    ({"variants": one(mode="dflash", **{"training.x": [1]})}, "[1] is no single value"),
    ({"variants": one(mode="dflash", passes=[0])}, "variants.mine.passes.0: 0"),
    (
        {"variants": one(mode="dflash", **{"dstill.student.alpha": 0})},
        "dstill.student.alpha changes nothing in a training of mode dflash",
    ),
    (
        {"variants": one(**{"from": "teacher", "dstill.teacher.mask_count_alpha": 1})},
        "changes nothing in a training of mode dstill_student",
    ),
    ({"seeds": [-1]}, "seeds.0: -1"),
    ({"seeds": [True]}, "seeds.0: True"),
    ({"seeds": [2**32]}, "less than"),
    ({"launcher": "srun 'a"}, "No closing quotation"),
    ({"launcher": " "}, "is no command"),
]


@pytest.mark.parametrize(("changes", "told"), MISTAKES)
def test_a_mistake_is_told_in_one_line(tmp_path: Path, changes: Any, told: str) -> None:
    with pytest.raises(UserError) as raised:
        grid(tmp_path, **changes)
    assert told in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "grid.yaml"))
    assert "\n" not in str(raised.value)


def test_a_grid_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no grid file .*gone\.yaml; specforge-dstill ablate"):
        read_grid(tmp_path / "gone.yaml")
    (tmp_path / "empty.yaml").touch()
    with pytest.raises(UserError, match="a grid file holds run:, seeds:"):
        read_grid(tmp_path / "empty.yaml")


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_variant_of_every_mode(tmp_path: Path, mode: str) -> None:
    mine = {"mode": mode, "from": "teacher", "training.num_epochs": 2}
    assert grid(tmp_path, variants={**VARIANTS, "mine": mine}).variants["mine"].mode == mode
