"""Who may import whom, read from the sources; and that the package itself loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import specforge_dstill

ROOT = Path(specforge_dstill.__file__).parent
# Part of the package, to what else of the package it may import. A part not named here is an edge:
# it may import everything.
ALLOWED = {
    "maths": {"maths"},
    "token_hash.py": set[str](),
    "files.py": {"errors"},
    "checksums.py": {"files"},
    "damage.py": {"files", "checksums"},
    "arguments.py": set[str](),
    "table.py": set[str](),
    "trajectory_store": {
        *("trajectory_store", "token_hash", "maths", "errors", "files", "checksums", "damage"),
    },
    "evaluation": {"evaluation", "trajectory_store", "maths", "errors", "console", "table"},
    "reporting": {"reporting", "evaluation", "errors", "files", "table"},
    "servers": {"servers", "data", "evaluation", "concurrently", "errors", "files"},
    "concurrently.py": set[str](),
    "options.py": {"option_sections", "errors", "validation"},
    "option_sections.py": set[str](),
    "validation.py": {"errors", "suggest"},
    "suggest.py": set[str](),
    "errors.py": set[str](),
}
SPECFORGE_USERS = {
    "modes",
    "data",
    "export",
    "train.py",
    "launch.py",
    "inputs.py",
    "machine.py",
    "overrides.py",
    "runfile.py",
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources() -> list[tuple[str, Path]]:
    """(part of the package, file)."""
    return [
        (path.relative_to(ROOT).parts[0], path)
        for path in sorted(ROOT.rglob("*.py"))
        if "_specforge" not in path.parts
    ]


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_inner_parts_import_only_what_lies_below_them(part: str) -> None:
    for owner, path in sources():
        if owner != part:
            continue
        for name in imports(path):
            pieces = name.split(".")
            if pieces[0] == "specforge_dstill" and len(pieces) > 1:
                assert pieces[1] in ALLOWED[part], f"{path} imports {name}"


def test_maths_needs_torch_and_the_standard_library_only() -> None:
    known = {"torch", "specforge_dstill", *sys.stdlib_module_names}
    for owner, path in sources():
        if owner == "maths":
            assert {name.split(".")[0] for name in imports(path)} <= known, path


def test_only_the_edges_import_specforge() -> None:
    for owner, path in sources():
        if any(name.split(".")[0] == "specforge" for name in imports(path)):
            assert owner in SPECFORGE_USERS, path


@pytest.mark.parametrize("statement", ["import specforge_dstill", "import specforge_dstill.cli"])
def test_a_plain_import_loads_neither_torch_nor_specforge(statement: str) -> None:
    code = f"{statement}; import sys; print(*{{'torch', 'specforge'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""
