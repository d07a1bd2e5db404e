"""The commands that documents tell their readers to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Where the parts of the package are named.
CODE = ROOT / "specforge_dstill" / "README.md"
_FENCED = re.compile(r"^```(?:bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ASSIGNED = re.compile(r"^[A-Z_]+=\S*\s+")
#: What our commands begin with, wherever in a text they stand.
_OURS = re.compile(
    r"^\s*(?:\$ )?((?:torchrun [^\n]*-m specforge\.train|specforge-dstill [a-z]).*)$"
)


def documents() -> list[Path]:
    """Every Markdown file of ours but results."""
    return [
        ROOT / "README.md",
        CODE,
        *sorted(ROOT.glob("configs/**/README.md")),
        *sorted(p for p in ROOT.glob("examples/**/README.md") if "results" not in p.parts),
    ]


def fenced(path: Path) -> Iterator[list[str]]:
    """The commands of a document's shell blocks, as words."""
    for block in _FENCED.findall(path.read_text(encoding="utf-8")):
        for line in _joined(block):
            words = shlex.split(line, comments=True)
            if words:
                yield words


def ours(text: str) -> Iterator[list[str]]:
    """Our commands in any text: its lines that begin with one.

    Those with an ellipsis are left, and a script's with variables, which its own test runs.
    """
    for line in _joined(text):
        found = _OURS.match(line)
        if found and not {"…", "$"} & set(found[1]):
            # Beside a command an example may say, after some spaces, what it is for.
            command = re.split(r"\s{3,}(?=[^-\s])", found[1])[0]
            yield shlex.split(_ASSIGNED.sub("", command), comments=True)


def _joined(text: str) -> Iterator[str]:
    """Lines, with those that end in a backslash joined to the next."""
    yield from re.sub(r"\\\n\s*", " ", text).splitlines()
