"""`evaluate --server`, from its options to its files, and the report of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specforge_dstill import cli
from specforge_dstill.evaluation.serving import ServingReport, serving_from_json
from specforge_dstill.servers import client
from tests.data.caches import make_manifest
from tests.data.conftest import write_lines
from tests.servers.fake import ACCEPTED, ROUNDS, Fake, serving
from tests.tiny import write_json

CELLS = ("--concurrency=1,4", "--temperature=0,1", "--max-new-tokens=50")
PER_CELL = 4 + 5  # of warm-up, and turns


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSES", (0.0,))


@pytest.fixture
def plain() -> Iterator[Fake]:
    with serving("vllm") as server:
        yield server


@pytest.fixture
def drafting() -> Iterator[Fake]:
    with serving("vllm", drafts=True) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    talks = [{"turns": ["first", "second"], "id": "talk"}, *({"turns": [f"q{i}"]} for i in "012")]
    write_lines(tmp_path / "talks.jsonl", talks)
    return tmp_path


def evaluate(folder: Path, *words: str) -> int:
    prompts = f"--prompts=talks={folder / 'talks.jsonl'}"
    return cli.main(["evaluate", prompts, f"--output={folder / 'results'}", *words])


def results(folder: Path) -> ServingReport:
    return serving_from_json((folder / "results/servers.json").read_text())


def with_drafter(server: Fake, name: str = "student") -> list[str]:
    return [f"--server={server.url}", f"--drafter={name}"]


def test_first_without_and_then_with_the_drafter(
    folder: Path, plain: Fake, drafting: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on one node; the file grows, and the table has S once both are there."""
    assert evaluate(folder, f"--plain-server={plain.url}", *CELLS) == 0
    assert capsys.readouterr().out.count(" plain ") == 4
    assert {one.drafter for one in results(folder).served} == {None}
    assert evaluate(folder, *with_drafter(drafting), *CELLS) == 0
    assert len(plain.bodies) == len(drafting.bodies) == 4 * PER_CELL
    report = results(folder)
    points = [(one.temperature, one.concurrency) for one in report.served]
    assert points == 2 * [(0, 1), (0, 4), (1, 1), (1, 4)]
    assert {one.drafted for one in report.served[4:]} == {(5 * ROUNDS, 5 * ACCEPTED)}
    shown = capsys.readouterr()
    table = (folder / "results/servers.txt").read_text()
    assert table in shown.out
    assert table.splitlines()[3].split()[:5] == ["talks", "0", "1", "student", "2.75"]
    assert "–" not in table.splitlines()[3], "S is there"
    assert "accepted past the end of an answer count" in table
    assert "second turn (MT-Bench) follows the server's own first answer" in table
    assert "vLLM does not tell how it was launched" in table
    details = report.details
    assert (details["engine"], details["target"]) == ("vLLM", "tiny")
    assert details["servers"] == {"plain": {"url": plain.url}, "student": {"url": drafting.url}}
    assert details["prompts"]["talks"]["count"] == 4
    assert details["template_kwargs"] == {}


def test_what_is_there_is_not_measured_again(folder: Path, plain: Fake, drafting: Fake) -> None:
    both = [f"--plain-server={plain.url}", *with_drafter(drafting)]
    drafting.statuses = [200] * PER_CELL + [500] * 20
    assert evaluate(folder, *both, *CELLS) == 2
    # In turn: without, with; without, and the failure.
    assert [one.drafter for one in results(folder).served] == [None, "student", None]
    kept = results(folder).served
    drafting.statuses, before = [], len(plain.bodies)
    assert evaluate(folder, *both, *CELLS) == 0
    assert len(plain.bodies) - before == 2 * PER_CELL
    assert results(folder).served[:3] == kept
    assert len(results(folder).served) == 8
    before = len(plain.bodies), len(drafting.bodies)
    assert evaluate(folder, *both, *CELLS) == 0
    assert (len(plain.bodies), len(drafting.bodies)) == before
    assert evaluate(folder, *both, *CELLS[1:], "--concurrency=2,4") == 0
    assert len(results(folder).served) == 12, "other cells are added"


def test_cells_that_are_used_again_are_told(
    folder: Path, drafting: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    """vLLM does not tell which drafter it has: a retrained one looks the same from here."""
    words = [*with_drafter(drafting), "--temperature=0"]
    assert evaluate(folder, *words, "--concurrency=1") == 0
    assert "were measured before" not in capsys.readouterr().err
    assert evaluate(folder, *words, "--concurrency=1,4") == 0
    when = results(folder).details["date"]
    told = f"1 of 2 cells were measured before, the last on {when}; another --output measures them"
    assert told in capsys.readouterr().err


def test_another_drafter_under_the_same_name_needs_another_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ("--temperature=0", "--concurrency=1")
    with serving("sglang", drafts=True) as first:
        first.weights = "drafter"
        assert evaluate(folder, *with_drafter(first), *cells) == 0
    with serving("sglang", drafts=True) as elsewhere:
        elsewhere.weights = "drafter"
        assert evaluate(folder, *with_drafter(elsewhere), *cells) == 0, "a server may move"
        elsewhere.weights = "retrained"
        line = mistake(capsys, evaluate(folder, *with_drafter(elsewhere), *cells))
        was = "the server of student: speculative_draft_model_path was 'drafter' and is now"
        assert f"{was} 'retrained'" in line
        assert "--output" in line
        assert evaluate(folder, *with_drafter(elsewhere, "retrained"), *cells) == 0
        assert len(elsewhere.bodies) == PER_CELL


def test_servers_launched_differently_are_warned_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured, and wherever the server without a drafter was measured."""
    cells = ("--temperature=0", "--concurrency=1")
    with serving("sglang") as plain, serving("sglang", drafts=True) as drafting:
        assert evaluate(folder, f"--plain-server={plain.url}", *cells) == 0
        assert evaluate(folder, *with_drafter(drafting), *cells) == 0
        assert "launched" not in capsys.readouterr().err
        drafting.launch["tp_size"], drafting.statuses = 8, [418]
        assert evaluate(folder, *with_drafter(drafting, "other"), *cells) == 2
    told = "the servers with other and without a drafter were launched with tp_size 8 and 1: S is"
    assert told in capsys.readouterr().err


def test_what_earlier_versions_did_not_record_is_no_change(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ("--temperature=0", "--concurrency=1")
    with serving("sglang", drafts=True) as server:
        server.launch["quantization"] = "fp8"
        assert evaluate(folder, *with_drafter(server), *cells) == 0
        path = folder / "results/servers.json"
        content = json.loads(path.read_text())
        del content["details"]["servers"]["student"]["quantization"]
        write_json(path, content)
        assert evaluate(folder, *with_drafter(server), *cells, "--concurrency=2") == 0
        server.launch["quantization"] = None
        line = mistake(capsys, evaluate(folder, *with_drafter(server), *cells))
    assert "the server of student: quantization was 'fp8' and is now None" in line


def test_words_under_the_table_may_change(folder: Path, drafting: Fake) -> None:
    words = [*with_drafter(drafting), "--temperature=0", "--concurrency=1"]
    assert evaluate(folder, *words) == 0
    path = folder / "results/servers.json"
    content = json.loads(path.read_text())
    write_json(path, {**content, "details": {**content["details"], "note": "As told before."}})
    assert evaluate(folder, *words) == 0
    assert len(drafting.bodies) == PER_CELL


def test_a_stop_does_not_wait_for_answers(folder: Path, plain: Fake) -> None:
    """An answer may take ten minutes, and its retries as long again."""
    plain.pause = 60.0
    words = ["evaluate", f"--prompts=talks={folder / 'talks.jsonl'}", f"--output={folder / 'out'}"]
    command = subprocess.Popen(
        [sys.executable, "-m", "specforge_dstill", *words, f"--plain-server={plain.url}"],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 40
    while not plain.bodies and time.monotonic() < deadline:
        time.sleep(0.05)
    command.send_signal(signal.SIGTERM)
    _, told = command.communicate(timeout=20)
    assert command.returncode == 128 + signal.SIGTERM
    assert "run the same command again to go on" in told


def test_sglang_and_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kwargs = '--template-kwargs={"enable_thinking": false}'
    with serving("sglang") as plain, serving("sglang", drafts=True) as drafting:
        both = [f"--plain-server={plain.url}/v1", *with_drafter(drafting)]
        assert evaluate(folder, *both, *CELLS, kwargs) == 0
        assert drafting.bodies[0]["chat_template_kwargs"] == {"enable_thinking": False}
        assert drafting.asked(4)[:2] == ["first", "second"]
    assert cli.main(["report", str(folder / "results"), f"--output={folder / 'report'}"]) == 0
    page = (folder / "report/report.md").read_text()
    assert "tiny in SGLang: speed-up S by concurrency (Table 2)" in page
    assert r"enable\_thinking = false" in page
    assert "| talks | student | 2.75 [2.75, 2.75] |" in page
    assert "milliseconds per output token" in page
    assert "tokens accepted past the end of an answer count" in page
    assert "S against concurrency" in (folder / "report/report.html").read_text()
    assert "error" not in capsys.readouterr().err


def test_other_settings_need_another_folder(
    folder: Path, drafting: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    first = [*with_drafter(drafting), "--temperature=0", "--concurrency=1"]
    assert evaluate(folder, *first) == 0
    before = (folder / "results/servers.json").read_bytes()
    for more, said in (
        (["--max-new-tokens=9"], "max_new_tokens was 4096 and is now 9"),
        (["--top-p=0.5"], "top_p was 1.0 and is now 0.5"),
        (['--template-kwargs={"a": 1}'], "template_kwargs was {} and is now {'a': 1}"),
        (["--limit=2"], "talks was 4 prompts and is now 2, or others"),
    ):
        line = mistake(capsys, evaluate(folder, *first, *more))
        assert said in line
        assert "--output" in line
    assert (folder / "results/servers.json").read_bytes() == before
    (folder / "results/servers.json").write_text("{")
    assert "servers.json: cannot be read" in mistake(capsys, evaluate(folder, *first))


def test_mistakes_are_one_line(
    folder: Path, plain: Fake, drafting: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    as_plain, named = f"--plain-server={plain.url}", with_drafter(drafting)
    for words, said in (
        (["--server=http://127.0.0.1:9", "--drafter=a"], "127.0.0.1:9: no answer"),
        (["--server=http://x"], "--server needs --drafter NAME"),
        ([as_plain, "--drafter=a"], "--drafter names the drafter of --server"),
        ([f"--server={plain.url}", "--drafter=a"], "has no drafter, though --drafter a names"),
        ([f"--plain-server={drafting.url}"], "has a drafter; --plain-server is one without"),
        ([*named, "--drafter=b"], "--server has one drafter, not student, b"),
        ([named[0], "--drafter=a=b"], "--drafter a: with --server it is a bare name"),
        ([named[0], "--drafter=plain"], "--drafter plain: with --server it is a bare name"),
        ([*named, "--engine=sglang"], f"{drafting.url}: does not answer as sglang"),
        ([*named, "--model=huge"], "no model 'huge' is served; choose with --model: tiny"),
        ([*named, "--temperature=-1"], "temperature must be at least 0, got -1.0"),
        ([*named, "--temperature=warm"], "--temperature"),
        ([*named, "--concurrency=0,1"], "'0,1' is no list of requests at a time"),
        ([*named, "--top-p=2"], "top_p must be above 0 and at most 1"),
        ([*named, "--seed=1"], "--seed belongs to --decode"),
        ([*named, "--steps=1,8"], "--steps belongs to --replay and --decode"),
        ([*named, "--decode"], "say how to measure"),
        (["--decode", "--concurrency=1"], "--concurrency belongs to --server"),
        (["--decode", "--temperature=0,1", "--drafter=a=b"], "takes one --temperature"),
        (["--replay"], "name a drafter: --drafter NAME=CHECKPOINT"),
    ):
        assert said in mistake(capsys, evaluate(folder, *words)), words
    assert not (folder / "results").exists()
    assert plain.bodies == drafting.bodies == []


def test_two_servers_must_be_alike(
    folder: Path, plain: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving("sglang", drafts=True) as other:
        status = evaluate(folder, f"--plain-server={plain.url}", *with_drafter(other))
    line = mistake(capsys, status)
    assert "the two servers differ: SGLang 0.5.23 with tiny and vLLM 0.30.0 with tiny" in line


def test_what_is_out_of_the_ordinary_is_told(
    folder: Path, drafting: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    drafting.refuse, drafting.statuses = "second", [200] * 4 + [503]
    words = [*with_drafter(drafting), "--temperature=0", "--concurrency=8"]
    assert evaluate(folder, *words) == 0
    told = capsys.readouterr().err
    assert "talks: 4 prompts cannot keep 8 requests in flight" in told
    where = "student, talks, T = 0, C = 8"
    assert f"{where}: 1 turns left out, the server refuses them (first: talk/2)" in told
    assert f"{where}: 1 requests were sent again" in told
    assert results(folder).served[0].left_out == ("talk/2",)


def test_the_run_files_cache_says_how_prompts_are_formatted(
    folder: Path,
    drafting: Fake,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its template options are the default; others are warned of."""
    make_manifest(template_kwargs={"thinking": True}).write(folder)
    model = {"target_model_path": str(folder), "draft_model_config": str(folder / "draft.json")}
    data = {"hidden_states_path": str(folder)}
    write_json(folder / "dstill.yaml", {"model": model, "data": data, "output_dir": "out"})
    words = [*with_drafter(drafting), "--concurrency=1", "--temperature=0"]
    monkeypatch.chdir(folder)
    assert evaluate(folder, *words) == 0, "the current folder's, without --config"
    assert results(folder).details["template_kwargs"] == {"thinking": True}
    monkeypatch.chdir(Path(__file__).parent)
    words += [f"--config={folder / 'dstill.yaml'}", f"--output={folder / 'results'}"]
    assert evaluate(folder, *words) == 0
    details = results(folder).details
    assert details["template_kwargs"] == details["cache"]["template_kwargs"] == {"thinking": True}
    assert "Acceptance may differ" not in capsys.readouterr().err
    assert evaluate(folder, *words, "--template-kwargs={}", f"--output={folder / 'b'}") == 0
    assert "in the feature cache: thinking = true" in capsys.readouterr().err


def mistake(capsys: pytest.CaptureFixture[str], status: int) -> str:
    """The one line on stderr of a user's mistake."""
    assert status == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    return lines[0]
