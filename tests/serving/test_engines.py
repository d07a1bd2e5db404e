"""An exported drafter in dflash and in vLLM: our own decoder's tokens and rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trained import Case

pytestmark = pytest.mark.serving


@pytest.mark.parametrize(
    ("kind", "folder", "told"),
    [
        ("full", "exported", ["specforge_dstill", "dflash", "vllm"]),
        ("sliding", "exported", ["specforge_dstill", "dflash", "vllm"]),
        ("mixed", "exported", ["specforge_dstill", "dflash"]),
        ("full", "speculators", ["specforge_dstill", "vllm"]),
        ("sliding", "speculators", ["specforge_dstill", "vllm"]),
    ],
)
def test_every_engine_drafts_as_we_do(
    cases: dict[str, Case],
    engines: Path,
    example: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    folder: str,
    told: list[str],
) -> None:
    """The example ends with 1 when tokens, rounds or counts differ. vLLM has no mixed one here."""
    case = cases[kind]
    monkeypatch.chdir(case.folder)
    status = example.main(
        [
            f"--config={case.run_file}",
            f"--prompts={case.folder / 'one.jsonl'}",
            f"--engines={engines}",
            "--max-new-tokens=32",
            f"{kind}={case.folder / folder}",
        ]
    )
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()[2:]]
    assert status == 0, printed
    assert [row[1] for row in rows] == told
    # It drafts: otherwise nothing was compared.
    assert float(rows[0][4]) > 1.2
