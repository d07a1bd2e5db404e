"""`evaluate --decode`, from its options to its files."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import transformers

from specforge_dstill import cli
from specforge_dstill.data import targets
from specforge_dstill.device_names import device_name
from specforge_dstill.evaluation.report import Report, report_from_json
from specforge_dstill.verbs import decode, decode_ways
from tests.tiny import BLOCK_SIZE, write_json
from tests.trained import STEPS, Case

NEW_TOKENS = 12
FILES = {"--decode": "decoding.json", "--replay": "results.json"}


def evaluate(case: Case, output: Path, *words: str, route: str = "--decode") -> int:
    return cli.main(
        [
            "evaluate",
            route,
            f"--config={case.run_file}",
            f"--max-new-tokens={NEW_TOKENS}",
            f"--output={output}",
            *words,
        ]
    )


def words(case: Case, *sets: str, drafters: tuple[str, ...] = ("trained",)) -> list[str]:
    return [
        *(f"--prompts={name}={case.folder / name}.jsonl" for name in sets or ("one",)),
        *(f"--drafter={name.partition(':')[0]}={case.folder / name}" for name in drafters),
    ]


@dataclass(frozen=True)
class Run:
    printed: str
    folder: Path
    file: str

    @property
    def results(self) -> dict[str, Any]:
        return json.loads((self.folder / self.file).read_text())

    @property
    def report(self) -> Report:
        return report_from_json((self.folder / self.file).read_text())


def run(case: Case, output: Path, *more: str, route: str = "--decode") -> Run:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert evaluate(case, output, *more, route=route) == 0
    return Run(printed.getvalue(), output, FILES[route])


@pytest.fixture(scope="module")
def greedy(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two data sets, one of two turns; two drafters, one of them at 1 and K passes."""
    chosen = words(case, "one", "two", drafters=("trained", "untrained:1"))
    return run(case, tmp_path_factory.mktemp("greedy"), *chosen, "--limit=4")


def test_it_accepts_what_replay_says(case: Case, greedy: Run) -> None:
    """Both write into one folder."""
    chosen = words(case, "one", "two", drafters=("trained", "untrained:1"))
    before = greedy.results
    replayed = run(case, greedy.folder, *chosen, "--limit=4", route="--replay").report
    assert greedy.results == before
    assert [(s.drafter, s.steps) for s in greedy.report.scores] == [
        ("trained", 1),
        ("trained", STEPS),
        ("untrained", 1),
    ]
    for mine, theirs in zip(greedy.report.scores, replayed.scores, strict=True):
        assert mine.walks == theirs.walks
    assert greedy.report.rows() == replayed.rows()
    assert greedy.report.block_size == replayed.block_size == BLOCK_SIZE
    # A report reads both: one shape, with or without speed.
    assert replayed.plain is None
    assert replayed.speed_text() is None
    names = [walk.name for walk in greedy.report.scores[0].walks["two"]]
    assert names == [f"two-{i}{turn}" for i in range(4) for turn in ("", "/2")]


def test_times_and_memory(greedy: Run) -> None:
    plain = greedy.report.plain
    assert plain is not None
    for score in greedy.report.scores:
        assert score.speed is not None
        assert score.speed.same == (12, 12), "lossless"
        assert sum(score.speed.shares().values()) == pytest.approx(1)
        assert min(score.speed.shares().values()) > 0
        assert score.speed.peak_bytes > 50e6, "a process with torch"
        gains = greedy.report.speedups(score)
        assert gains == {
            name: plain.per_token(name) / score.speed.per_token(name) for name in ("one", "two")
        }
        for name, timings in score.speed.timings.items():
            assert [t.tokens for t in timings] == [t.tokens for t in plain.timings[name]]
    assert plain.same is None
    first = greedy.results["scores"][0]
    assert first["speedup"] == greedy.report.speedups(greedy.report.scores[0])
    details = greedy.results["details"]
    assert (details["temperature"], details["rule"], details["batch_size"]) == (0, "compare", 1)
    assert details["warm_up"] == {"runs": 4, "tokens": 128}
    assert (details["prompts"]["one"]["count"], len(details["prompts"]["one"]["hash"])) == (4, 16)
    assert details["device_name"] == device_name("cpu")
    assert "attn_implementation" not in details, "told where it was asked for"
    again = report_from_json(greedy.report.to_json())
    assert again.speed_text() == greedy.report.speed_text()


def test_the_memory_of_one_way_is_without_the_other_drafters(
    case: Case, greedy: Run, tmp_path: Path
) -> None:
    """All stay loaded while ways take turns."""
    kept = tmp_path / "decoded"
    shutil.copytree(greedy.folder / "decoded", kept)
    for path in kept.glob("*.json"):
        content = json.loads(path.read_text())
        if path.name != "settings.json":
            as_high = {way: {**one, "peak_bytes": 10**9} for way, one in content.items()}
            write_json(path, as_high)
    chosen = words(case, "one", "two", drafters=("trained", "untrained:1"))
    found = run(case, tmp_path, *chosen, "--limit=4")
    told = found.results["details"]["checkpoints"]
    trained, untrained = told["trained"]["bytes"], told["untrained"]["bytes"]
    assert trained == 4 * told["trained"]["parameters"]
    peaks = [score.speed.peak_bytes for score in found.report.scores if score.speed]
    assert peaks == [10**9 - untrained, 10**9 - untrained, 10**9 - trained]
    assert found.report.plain is not None
    assert found.report.plain.peak_bytes == 10**9 - trained - untrained


def test_timings_of_another_processor_are_not_used_again(
    case: Case, greedy: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decode, "device_name", lambda device: f"another than {device}")
    chosen = [*words(case, "one", "two", drafters=("trained", "untrained:1")), "--limit=4"]
    line = mistake(capsys, evaluate(case, greedy.folder, *chosen))
    own = device_name("cpu")
    assert f"device_name was {own!r} and is now 'another than cpu'" in line


def test_the_tables(greedy: Run) -> None:
    text = (greedy.folder / "decoding.txt").read_text()
    assert text.strip() in greedy.printed
    acceptance, speed = text.strip().split("\n\n")
    assert acceptance == greedy.report.text()
    header, _, plain, *rows = [line.split() for line in speed.splitlines()]
    assert header[:6] == ["Drafter", "Passes", "S", "one", "S", "two"]
    assert plain[:6] == ["plain", "–", "1.00", "1.00", "1.00", plain[5]]
    assert [row[:2] for row in rows] == [["trained", "1"], ["trained", "4"], ["untrained", "1"]]


def test_a_finished_run_is_read_again_and_a_stopped_one_goes_on(
    case: Case, greedy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [*words(case, "one", "two", drafters=("trained", "untrained:1")), "--limit=4"]
    with monkeypatch.context() as patch:
        patch.setattr(targets, "load_model", refuse)
        assert run(case, greedy.folder, *chosen).report.to_json() == greedy.report.to_json()
    plain, rounds = decode_ways.decode_plainly, []

    def stop_at_the_seventh(*args: Any, **options: Any) -> Any:
        rounds.append(None)
        if len(rounds) == 7:  # after 4 of warm-up and 2 prompts
            raise KeyboardInterrupt
        return plain(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(decode_ways, "decode_plainly", stop_at_the_seventh)
        assert evaluate(case, tmp_path, *chosen) == 130
    kept = {path: path.read_bytes() for path in (tmp_path / "decoded").glob("*.json")}
    assert len(kept) == 3, "settings and two prompts"
    found = run(case, tmp_path, *chosen).report
    assert [s.walks for s in found.scores] == [s.walks for s in greedy.report.scores]
    assert all(path.read_bytes() == content for path, content in kept.items())


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("the target is loaded, though every answer is there")


@pytest.mark.parametrize("rule", ["compare", "reject"])
def test_sampled_answers(case: Case, tmp_path: Path, rule: str) -> None:
    chosen = [*words(case, drafters=("trained:1",)), "--limit=1", "--temperature=1"]
    found = run(case, tmp_path / "a", *chosen, f"--rule={rule}", "--top-p=0.9", "--seed=3")
    same = run(case, tmp_path / "b", *chosen, f"--rule={rule}", "--top-p=0.9", "--seed=3")
    other = run(case, tmp_path / "c", *chosen, f"--rule={rule}", "--top-p=0.9", "--seed=4")
    assert tokens(found) == tokens(same) != tokens(other)
    (score,) = found.report.scores
    assert score.speed is not None
    assert score.speed.same is None, "sampled answers need not agree"
    assert found.results["details"]["top_p"] == 0.9


def test_a_dspark_drafter_and_its_least_confidence(case: Case, tmp_path: Path) -> None:
    """One position more than the draft config's block size; the same answers, in more rounds."""
    draft = f"model.draft_model_config={case.folder / 'draft-spark.json'}"
    chosen = [*words(case, drafters=("spark:1",)), "--limit=4", draft]
    whole = run(case, tmp_path / "whole", *chosen)
    replayed = run(case, tmp_path / "whole", *chosen, route="--replay").report
    assert whole.report.block_size == replayed.block_size == BLOCK_SIZE + 1
    assert [s.tau for s in whole.report.scores] == [s.tau for s in replayed.scores]
    cut = run(case, tmp_path / "cut", *chosen, "--min-confidence=0.7")
    assert tokens(whole) == tokens(cut)
    assert cut.results["details"]["min_confidence"] == 0.7
    assert "min_confidence" not in whole.results["details"]
    rounds = [
        len(w.accepted) for found in (whole, cut) for w in found.report.scores[0].walks["one"]
    ]
    assert sum(rounds[:4]) < sum(rounds[4:])


def tokens(found: Run) -> list[Any]:
    paths = sorted((found.folder / "decoded").glob("*.json"))
    contents = [json.loads(path.read_text()) for path in paths if path.name != "settings.json"]
    return [{way: one["tokens"] for way, one in content.items()} for content in contents]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ["--rule=reject", "--steps=1"],
            "--rule reject: rejection compares probabilities, and temperature 0",
        ),
        (["--temperature=-1"], "error: --decode: temperature must be at least 0, got -1.0"),
        (["--top-p=0"], "top_p must be above 0"),
        (["--rule=reject", "--temperature=1"], f"which {STEPS} passes do not give; compare"),
        (["--rule=reject", "--temperature=1"], "is exact, too; or give --steps 1"),
        (["--min-confidence=0.5"], "--min-confidence is for drafts of one pass; give --steps 1"),
        (["--min-confidence=2", "--steps=1"], "--min-confidence 2: a probability lies between"),
        (["--min-confidence=0.5", "--steps=1"], "needs drafters with a confidence head"),
        (["--answers=x"], "--answers belongs to --replay"),
        (["--replay"], "say how to measure"),
    ],
)
def test_mistakes_are_one_line(
    case: Case,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(targets, "load_model", refuse)
    status = evaluate(case, tmp_path / "out", *words(case), *more)
    assert said in mistake(capsys, status)
    assert not (tmp_path / "out").exists()


def test_options_of_decoding_belong_to_it(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = evaluate(case, tmp_path, *words(case), "--top-k=5", route="--replay")
    assert "--top-k belongs to --decode" in mistake(capsys, status)


def test_results_of_other_prompts_are_not_written_over(
    case: Case, greedy: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "load_model", refuse)
    before = greedy.results
    chosen = words(case, "one", drafters=("trained", "untrained:1"))
    line = mistake(capsys, evaluate(case, greedy.folder, *chosen, "--limit=4"))
    assert "decoding.json: holds two, which this command does not measure" in line
    assert greedy.results == before


def test_other_settings_need_another_folder(
    case: Case, greedy: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [*words(case, "one", "two", drafters=("trained", "untrained:1")), "--limit=4"]
    status = evaluate(case, greedy.folder, *chosen, "--temperature=0.5")
    line = mistake(capsys, status)
    assert "(temperature was 0.0 and is now 0.5)" in line
    assert "--output" in line
    status = evaluate(case, greedy.folder, *chosen, "--attn-implementation=eager")
    assert "attn_implementation was None and is now 'eager'" in mistake(capsys, status)


def test_a_target_that_cannot_be_rolled_back_is_refused_before_it_is_loaded(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its configuration alone: there are no weights here."""
    config = transformers.MistralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=16,
    )
    config.save_pretrained(tmp_path / "target")
    content = json.loads(case.run_file.read_text())
    content["model"]["target_model_path"] = str(tmp_path / "target")
    write_json(tmp_path / "dstill.yaml", content)
    status = evaluate(case, tmp_path / "out", *words(case), f"--config={tmp_path}/dstill.yaml")
    line = mistake(capsys, status)
    assert "MistralForCausalLM has layers of kind sliding_attention" in line
    assert "SGLang or vLLM" in line


def mistake(capsys: pytest.CaptureFixture[str], status: int) -> str:
    """The one line on stderr of a user's mistake."""
    assert status == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    return lines[0]
