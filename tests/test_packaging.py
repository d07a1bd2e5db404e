"""What is installed: our package, and what makes `-m specforge.train` exist."""

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


def arguments_of(command: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py gives to setup() under a command."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    monkeypatch.setattr(sys, "argv", ["setup.py", command])
    monkeypatch.chdir(REPOSITORY)
    runpy.run_path(str(REPOSITORY / "setup.py"))
    return given


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return arguments_of("bdist_wheel", monkeypatch)


def name_of(requirement: str) -> str:
    return re.split(r"[<>=!~\[ ;]", requirement, maxsplit=1)[0].lower()


def test_packages(arguments: dict[str, Any]) -> None:
    packages = set(arguments["packages"])
    assert {"specforge_dstill", "specforge_dstill.maths"} <= packages
    assert all(name.startswith("specforge_dstill") for name in packages)
    assert not any("_specforge" in name for name in packages)


def test_an_editable_install_puts_train_alone_beside_specforges_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = arguments_of("editable_wheel", monkeypatch)
    assert "specforge" in arguments["packages"]
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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of a wheel, as it lies in site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
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
            *("--wheel-dir", str(folder), str(source)),
        ],
        check=True,
        timeout=300,
    )
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


@pytest.mark.slow
def test_a_wheel_brings_no_folder_of_specforges(installed: Path) -> None:
    assert sorted(path.name for path in installed.iterdir() if path.suffix != ".dist-info") == [
        "specforge_dstill",
        "specforge_dstill.pth",
    ]
    for name in ("py.typed", "init_template.yaml", "_specforge/train.py"):
        assert (installed / "specforge_dstill" / name).exists()
    assert list(installed.glob("*.dist-info/licenses/LICENSE"))


#: How Python finds a SpecForge, as code that is given its folder: installed, or a checkout.
FOUND = {
    "on the path": "sys.path.append(folder)",
    "by an editable install's finder": """
from importlib.util import spec_from_file_location

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "specforge":
            init = folder + "/specforge/__init__.py"
            where = [folder + "/specforge"]
            return spec_from_file_location(name, init, submodule_search_locations=where)

sys.meta_path.append(Finder)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", FOUND)
@pytest.mark.parametrize("own", [False, True])
def test_specforge_train_is_found_wherever_specforge_is(
    installed: Path, tmp_path: Path, how: str, own: bool
) -> None:
    """SpecForge itself is not hidden, nor a train.py that it may have one day."""
    package = tmp_path / "specforge"
    package.mkdir()
    (package / "__init__.py").write_text("its_own = True\n")
    if own:
        (package / "train.py").touch()
    code = [
        "import site, sys",
        f"folder = {str(tmp_path)!r}",
        f"site.addsitedir({str(installed)!r})",
        FOUND[how],
        "import specforge",
        "from importlib.util import find_spec",
        "assert specforge.its_own",
        "print(find_spec('specforge.train').origin)",
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "\n".join(code)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    ours = installed / "specforge_dstill" / "_specforge"
    assert Path(done.stdout.strip()) == (package if own else ours) / "train.py"
