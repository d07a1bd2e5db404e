"""`specforge-dstill VERB`: its overview, its help, its mistakes, and init."""

from __future__ import annotations

import argparse
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

from specforge_dstill import __version__, cli
from specforge_dstill.cli import VERBS, main
from specforge_dstill.errors import UserError


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("specforge-dstill: error: ")
    return line


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_the_overview_lists_every_verb(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text and verb.help in text for name, verb in VERBS.items())


@pytest.mark.parametrize("verb", VERBS)
def test_each_verbs_help_shows_an_example(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with pytest.raises(SystemExit) as done:
        main([verb, "--help"])
    assert done.value.code == 0
    assert f"specforge-dstill {verb} --" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_the_overview_loads_no_torch() -> None:
    code = (
        "import sys; from specforge_dstill.cli import main; main([]);"
        "assert not {'torch', 'specforge', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


def test_an_unknown_verb_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean capture?" in error_of(capsys, "captur")


def test_a_missing_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--prompts" in error_of(capsys, "regenerate")


def test_a_users_mistake_in_a_verb_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(args: argparse.Namespace) -> int:
        raise UserError(f"no\n  {args.what}")

    module = types.ModuleType("specforge_dstill.fake")
    vars(module).update(add_arguments=lambda parser: parser.add_argument("what"), run=run)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.VERBS, "fake", cli.Verb(module.__name__, "fake it", "fake this"))
    assert error_of(capsys, "fake", "good") == "specforge-dstill: error: no good"


def test_a_warning_of_ours_is_one_line_and_others_stay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_args: argparse.Namespace) -> int:
        # As it is written; pytest takes warnings away before that.
        for where in (cli.__file__, "other.py"):
            print(warnings.formatwarning(UserWarning("the cache\n is old"), UserWarning, where, 7))
        return 0

    module = types.ModuleType("specforge_dstill.fake")
    vars(module).update(add_arguments=lambda parser: None, run=run)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.VERBS, "fake", cli.Verb(module.__name__, "fake it", "fake"))
    before = warnings.formatwarning
    assert main(["fake"]) == 0
    assert warnings.formatwarning is before
    ours, _, *others = capsys.readouterr().out.splitlines()
    assert ours == "specforge-dstill: warning: the cache is old"
    assert others[0] == "other.py:7: UserWarning: the cache"


def test_help_does_not_speak_of_flash_attention() -> None:
    """SpecForge does when it is imported."""
    command = [sys.executable, "-m", "specforge_dstill", "evaluate", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    assert "flash_attn" not in done.stderr


def test_init_writes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--target", "Org/model", "--draft-config", "draft.json"]) == 0
    text = Path("dstill.yaml").read_text(encoding="utf-8")
    assert 'target_model_path: "Org/model"' in text
    assert "@" not in text
    assert capsys.readouterr().out == "wrote dstill.yaml; there is no file draft.json yet\n"
    assert "dstill.yaml exists already" in error_of(capsys, "init")
    assert Path("dstill.yaml").read_text(encoding="utf-8") == text
    assert main(["init", "--output", "other.yaml"]) == 0
    left = "model.target_model_path and model.draft_model_config"
    assert capsys.readouterr().out == f"wrote other.yaml; set {left} in it\n"
    assert main(["init", "--output", "third.yaml", "--target", "Org/model"]) == 0
    left = "model.draft_model_config"
    assert capsys.readouterr().out == f"wrote third.yaml; set {left} in it\n"
    assert "cannot write no/dir.yaml" in error_of(capsys, "init", "--output", "no/dir.yaml")


@pytest.mark.skipif(sys.platform != "linux", reason="has /dev/full")
def test_output_that_nobody_reads_or_that_does_not_fit() -> None:
    """The former ends a command silently, if it is the command's own output."""
    command = [sys.executable, "-m", "specforge_dstill", "--help"]
    alone = ("bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "-")
    closed = subprocess.run(
        [*alone, *command],
        capture_output=True,
        check=False,
    )
    assert (closed.returncode, closed.stderr) == (141, b"")
    code = (
        "import sys; from specforge_dstill.console import exit_status\n"
        "def command():\n    {}\n"
        "sys.exit(exit_status(command))\n"
    )
    prints = "while True: print('x' * 9999)"
    unbuffered = subprocess.run(
        [*alone, sys.executable, "-u", "-c", code.format(prints)],
        capture_output=True,
        check=False,
    )
    assert (unbuffered.returncode, unbuffered.stderr) == (141, b"")
    raises = "raise BrokenPipeError(32, 'of a tracker')"
    of_others = subprocess.run(
        [sys.executable, "-c", code.format(raises)], capture_output=True, check=False
    )
    assert of_others.returncode == 1
    assert b"of a tracker" in of_others.stderr
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr == b"specforge-dstill: error: no space left where the output goes\n"
