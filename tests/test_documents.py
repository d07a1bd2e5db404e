"""Documents tell the truth: what they tell readers to type is typed here, or at least read."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from specforge_dstill.cli import VERBS, main, parser_of
from specforge_dstill.data.conversations import Prompt, read_prompts
from specforge_dstill.servers import client
from specforge_dstill.train import build_parser
from specforge_dstill.verbs import evaluation_inputs
from tests import tiny
from tests.ablations.grids import write_grid
from tests.documents import CODE, ROOT, documents, fenced, ours
from tests.modes.running import train
from tests.servers.fake import Fake, serving
from tests.trained import texts, write_prompts

SERVER = "http://127.0.0.1:30000"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The README's target under its name, but tiny, and the files that its reader has."""
    tiny.save_target(tmp_path / "Qwen" / "Qwen3-8B")
    draft = tmp_path / "configs" / "qwen3-8b" / "draft.json"
    draft.parent.mkdir(parents=True)
    tiny.write_json(draft, {**tiny.draft_config(), "block_size": 16})
    write_prompts(tmp_path / "prompts.jsonl", [[text] for text in texts(8, seed=0)])
    write_prompts(tmp_path / "gsm8k.jsonl", [[text] for text in texts(2, seed=1)])
    shutil.move(write_grid(tmp_path), tmp_path / "ablations.yaml")

    def from_the_hub(name: str, *, limit: int | None = None) -> list[Prompt]:
        return read_prompts(str(tmp_path / "gsm8k.jsonl"), limit=limit)

    monkeypatch.setattr(evaluation_inputs, "benchmark_prompts", from_the_hub)
    monkeypatch.setattr(client, "PAUSES", (0.0,))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def servers() -> Iterator[dict[str, Fake]]:
    with serving("vllm") as plain, serving("vllm", drafts=True) as drafting:
        yield {"--plain-server": plain, "--server": drafting, "--base-url": plain}


def test_the_readmes_commands_in_their_order(
    world: Path, servers: dict[str, Fake], capsys: pytest.CaptureFixture[str]
) -> None:
    run, printed = 0, ""
    for words in fenced(ROOT / "README.md"):
        if words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
            continue
        printed += capsys.readouterr().out
        if words[0] in ("python", "vllm"):  # an engine's: as export printed it
            assert shlex.join(words) in printed
            continue
        at = dict(zip(words[1:], words[:-1], strict=True))
        words = [
            word.replace(SERVER, servers[at[word]].url) if SERVER in word else word
            for word in words
        ]
        assert typed(world, words) == 0, words
        run += 1
    assert run >= 15


def typed(world: Path, words: list[str]) -> int:
    """Run a command in this process; its exit status."""
    if words[0] == "torchrun":
        mode = words[words.index("--mode") + 1]
        return train(world, mode, *words[words.index("--mode") + 2 :]).status
    assert words[0] == "specforge-dstill", words
    # The ablations' own test trains; here the grid is read and every command of it made.
    plan = ["--plan"] if words[1] == "ablate" else []
    return main([*words[1:], *plan])


def told() -> dict[str, str]:
    """Every text that shows commands, by where it is."""
    found = {str(path.relative_to(ROOT)): path.read_text() for path in documents()}
    found |= {f"{name} --help": parser_of(name).format_help() for name in VERBS}
    found |= {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted([*ROOT.glob("examples/**/*"), *ROOT.glob("configs/**/*")])
        if path.suffix in (".py", ".yaml", ".sh", ".slurm")
    }
    found["train --help"] = build_parser().format_help()
    return found


@pytest.mark.parametrize("where", sorted(told()))
def test_every_command_that_is_shown_is_one(where: str) -> None:
    for words in ours(told()[where]):
        if words[0] == "torchrun":
            after = words[words.index("specforge.train") + 1 :]
            build_parser().parse_intermixed_args(after)
            continue
        assert words[1] in VERBS, words
        if "--help" in words:
            continue
        parser_of(words[1]).parse_intermixed_args(words[2:])


def test_every_verb_shows_a_command_that_it_takes() -> None:
    for name in VERBS:
        shown = [words for words in ours(parser_of(name).format_help()) if words[1] == name]
        assert shown, name


def test_the_tree_names_every_part_of_the_package() -> None:
    readme = CODE.read_text()
    tree = readme[readme.index("## The tree") :]
    package = ROOT / "specforge_dstill"
    parts = [p.name for p in package.iterdir() if p.is_dir() and not p.name.startswith("__")]
    for part in sorted(parts):
        assert f"{part}/" in tree, f"specforge_dstill/{part} is not in {CODE.name}'s tree"
    for example in sorted(p.name for p in (ROOT / "examples").iterdir() if p.is_dir()):
        if not example.startswith("__"):
            assert f"examples/{example}/" in tree, (
                f"examples/{example} is not in {CODE.name}'s tree"
            )


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", path.read_text()):
        name, _, heading = link.partition("#")
        there = path.parent / name if name else path
        assert there.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.*)$", there.read_text(), flags=re.MULTILINE)
            assert heading in {title.lower().replace(" ", "-") for title in titles}, link


def test_every_file_that_the_table_of_the_code_names_is_there() -> None:
    readme = CODE.read_text()
    table = readme[readme.index("## The paper, and where it is") : readme.index("## The tree")]
    named = [
        word for word in table.replace("`", " ").replace(",", " ").split() if word.endswith(".py")
    ]
    assert len(named) > 10
    for name in named:
        assert (ROOT / "specforge_dstill" / name).is_file(), name


@pytest.mark.parametrize("document", ["README.md", "examples/results/README.md"])
def test_results_that_are_shown_are_kept(document: str) -> None:
    """The rows of tables of variants stand as they lie in results."""
    tables = (ROOT / "examples" / "results").glob("*/table.txt")
    kept = {line for table in tables for line in table.read_text().splitlines()}
    shown = (ROOT / document).read_text().splitlines()
    names = tuple(f"    {name}" for name in ("dflash", "dspark", "teacher", "student"))
    rows = {line.removeprefix("    ") for line in shown if line.startswith(names)}
    assert len(rows) >= 6
    assert rows <= kept
