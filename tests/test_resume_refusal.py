"""SpecForge's refusal to resume on other files, in a line that can be read."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from specforge_dstill.resume_refusal import readable
from tests.modes.running import train, write_run

WEIGHTS = ("stat", "model.safetensors", 4096, 1796029160220872372)
CONFIG = ("sha256", "config.json", 911, "72e3")
AT = "/models/t/model.safetensors"
GIVE_BACK = "give it back the one that it had: touch -d @1796029160.220872372"
MEND = "resume with the original configuration"


def folder(*files: tuple[object, ...], at: str = "/models/t") -> tuple[object, ...]:
    return ("directory-stat-v2", at, files)


def refusal(then: object, now: object) -> str:
    name = "specforge_model_provenance"
    return f"checkpoint c was written with {name}={then} but this run has {name}={now}; {MEND}"


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        (
            folder(CONFIG, WEIGHTS),
            folder(CONFIG, (*WEIGHTS[:3], 5)),
            f"{AT} has another time of change (if it is the same file, {GIVE_BACK} {AT})",
        ),
        (
            folder(WEIGHTS),
            folder((*WEIGHTS[:2], 5000, 5)),
            f"{AT} is another file",
        ),
        (
            folder(CONFIG, WEIGHTS),
            folder((*CONFIG[:3], "a0"), WEIGHTS),
            "/models/t/config.json has other contents",
        ),
        (folder(CONFIG), folder(WEIGHTS), "/models/t/config.json is gone; /models/t/model.saf"),
        (folder(WEIGHTS), folder(WEIGHTS, at="/m/u"), "target_model was /models/t, and is /m/u"),
        (folder(WEIGHTS), None, "target_model was /models/t, and is None;"),
        (("reference", "org/t"), folder(WEIGHTS), "target_model was org/t, and is /models/t;"),
        ("org", "t", "target_model was 'org', and is 't';"),
        (
            ("file-stat-v2", "/d.json", ("sha256", "", 9, "a")),
            ("file-stat-v2", "/d.json", ("sha256", "", 9, "b")),
            "/d.json has other contents",
        ),
    ],
)
def test_what_differs_is_named_and_nothing_else(then: object, now: object, expected: str) -> None:
    same = ("torch_dtype", "float32")
    found = readable(refusal((("target_model", then), same), (("target_model", now), same)))
    assert found.startswith(f"checkpoint c does not fit: {expected}")
    assert found.endswith(f"; {MEND}")
    assert "float32" not in found


@pytest.mark.parametrize(
    "message",
    [
        "checkpoint c was written with seed=1 but this run has seed=2; resume with the original",
        refusal("(<object>,)", "(1,)"),
        refusal("(1, 2)", "(1, 3)"),
        refusal((("t", folder((1, 2))),), (("t", folder((1, 3))),)),
        refusal((("t", folder(WEIGHTS)),), (("t", folder(WEIGHTS)),)),
        "",
    ],
)
def test_other_messages_are_left_as_they_are(message: str) -> None:
    assert readable(message) == message


def test_the_command_that_it_names_mends_it(tiny_inputs: Path, tmp_path: Path) -> None:
    """A target that was copied anew: its weights have the time of the copy."""
    inputs = shutil.copytree(tiny_inputs, tmp_path / "its inputs")
    write_run(tmp_path, inputs)
    words = ("training.total_steps=6", "training.save_interval=2", "output_dir=out")
    assert train(tmp_path, "dstill_teacher", *words, "training.max_steps=2").status == 0
    weights = inputs / "target" / "model.safetensors"
    os.utime(weights, ns=(5, 5))
    resume = (*words, "training.resume_from=out", "training.max_steps=3")
    line = train(tmp_path, "dstill_teacher", *resume).error
    assert line.startswith(f"checkpoint out does not fit: {weights} has another time")
    assert len(line) < 600
    command = line.partition("had: ")[2].partition(")")[0]
    subprocess.run(command, shell=True, check=True)
    assert train(tmp_path, "dstill_teacher", *resume).status == 0
