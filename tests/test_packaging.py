"""What a wheel holds: our package, and train.py alone beside SpecForge's own files."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import setuptools

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that setup.py gives to setup()."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    monkeypatch.chdir(REPOSITORY)
    runpy.run_path(str(REPOSITORY / "setup.py"))
    return given


def name_of(requirement: str) -> str:
    return re.split(r"[<>=!~\[ ;]", requirement, maxsplit=1)[0].lower()


def test_packages(arguments: dict[str, Any]) -> None:
    packages = set(arguments["packages"])
    assert {"specforge_dstill", "specforge_dstill.maths", "specforge"} <= packages
    assert all(name == "specforge" or name.startswith("specforge_dstill") for name in packages)
    assert not any("_specforge" in name for name in packages)


def test_beside_specforges_files_goes_train_alone(arguments: dict[str, Any]) -> None:
    folder = REPOSITORY / arguments["package_dir"]["specforge"]
    names = [path.name for path in folder.iterdir() if path.name != "__pycache__"]
    assert names == ["train.py"]
    assert len((folder / "train.py").read_text(encoding="utf-8").splitlines()) == 4


def test_metadata(arguments: dict[str, Any]) -> None:
    assert arguments["name"] == "specforge-dstill"
    assert arguments["license"] == "Apache-2.0"
    assert arguments["python_requires"] == ">=3.11"
    assert "specforge>=0.2,<0.3" in arguments["install_requires"]
    for name in arguments["package_data"]["specforge_dstill"]:
        assert (REPOSITORY / "specforge_dstill" / name).exists()


def test_the_cpu_requirements_cover_setup_py(arguments: dict[str, Any]) -> None:
    lines = (REPOSITORY / "requirements-cpu.txt").read_text(encoding="utf-8").splitlines()
    listed = {name_of(line) for line in lines if line and not line.startswith("#")}
    # The Makefile installs these two by themselves.
    wanted = {name_of(item) for item in arguments["install_requires"]} - {"torch", "specforge"}
    wanted |= {name_of(item) for item in arguments["extras_require"]["dev"]}
    assert wanted <= listed


def test_the_entry_beside_specforge_is_found() -> None:
    code = "import importlib.util as u; print(u.find_spec('specforge.train').origin)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        pytest.skip("runs from the sources: the package is not installed here")
    assert done.stdout.strip().endswith("train.py")


@pytest.mark.slow
def test_a_wheel_holds_specforge_train_and_nothing_else_there(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(
        REPOSITORY / "specforge_dstill",
        source / "specforge_dstill",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", str(tmp_path), str(source)),
        ],
        check=True,
        timeout=300,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.startswith("specforge/")] == ["specforge/train.py"]
    assert {"specforge_dstill/py.typed", "specforge_dstill/init_template.yaml"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
