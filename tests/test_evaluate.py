"""`evaluate --replay`: it equals real decoding, and the verb from its options to its files."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from specforge_dstill import cli
from specforge_dstill.data import targets
from specforge_dstill.data.answer_folder import AnswerFolder
from specforge_dstill.data.generation import Decoding
from specforge_dstill.data.manifest import CacheManifest
from specforge_dstill.data.target_identity import weights_fingerprint
from specforge_dstill.evaluation.report import Report, report_from_json
from specforge_dstill.verbs import evaluation_plan, replay

from .tiny import BLOCK_SIZE, HIDDEN, LAYERS, MASK_ID, STOP_ID, save_target
from .trained import STEPS, Case, texts, write_prompts

NEW_TOKENS = 32


@dataclass(frozen=True)
class Evaluated:
    """What the verb printed and wrote for two data sets and three drafters."""

    table: list[list[str]]
    results: str
    folder: Path

    @property
    def report(self) -> Report:
        return report_from_json(self.results)


@pytest.fixture(scope="module")
def evaluated(case: Case) -> Evaluated:
    words = [
        *(f"--prompts={name}={case.folder / name}.jsonl" for name in ("one", "two")),
        f"--drafter=dflash={case.folder / 'untrained'}:1",
        f"--drafter=teacher={case.folder / 'trained'}",
        f"--drafter=student={case.folder / 'trained'}:1",
    ]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert evaluate(case, *words) == 0
    lines = [line.split() for line in printed.getvalue().splitlines()]
    folder = case.folder / "results"
    return Evaluated(lines[: lines.index([])], (folder / "results.json").read_text(), folder)


def evaluate(case: Case, *words: str, output: str = "results", new_tokens: int = NEW_TOKENS) -> int:
    return cli.main(
        [
            "evaluate",
            "--replay",
            f"--config={case.run_file}",
            f"--max-new-tokens={new_tokens}",
            f"--output={case.folder / output}",
            *words,
        ]
    )


# The reference: greedy speculative decoding as it is served, written without our modules.


@torch.inference_mode()
def decode(
    target: Any, draft: Any, prompt: list[int], *, steps: int
) -> tuple[list[int], list[int]]:
    """The answer's token ids, and of each round the drafted tokens that entered the answer."""
    cache = DynamicCache(config=target.config)
    out = target(torch.tensor([prompt]), past_key_values=cache, output_hidden_states=True)
    features = target_features(out)
    answer, rounds = [int(out.logits[0, -1].argmax())], []
    while answer[-1] != STOP_ID and len(answer) < NEW_TOKENS:
        anchor = len(prompt) + len(answer) - 1
        assert features.shape[1] == anchor == cache.get_seq_length()
        block = draft_block(target, draft, features, answer[-1], steps=steps)
        out = target(torch.tensor([block]), past_key_values=cache, output_hidden_states=True)
        own = out.logits[0].argmax(-1).tolist()
        length = 0
        while length < BLOCK_SIZE - 1 and block[length + 1] == own[length]:
            length += 1
        cache.crop(anchor + 1 + length)
        features = torch.cat([features, target_features(out)[:, : length + 1]], dim=1)
        drafted = 0
        for place, token in enumerate([*block[1 : length + 1], own[length]]):
            answer.append(token)
            drafted += place < length
            if token == STOP_ID or len(answer) == NEW_TOKENS:
                break
        rounds.append(drafted)
    return answer, rounds


def target_features(out: Any) -> Tensor:
    return torch.cat([out.hidden_states[layer + 1] for layer in LAYERS], dim=-1)


def draft_block(
    target: Any, draft: Any, features: Tensor, anchor_id: int, *, steps: int
) -> list[int]:
    """Algorithm 1 for one block; with one pass, every position's most probable token."""
    anchor = features.shape[1]
    block = torch.tensor([anchor_id] + [MASK_ID] * (BLOCK_SIZE - 1))
    for step in range(1, steps + 1):
        hidden = draft(
            position_ids=torch.arange(anchor + BLOCK_SIZE)[None],
            noise_embedding=target.get_input_embeddings()(block)[None],
            target_hidden=features,
            is_causal=False,
        )
        probabilities = target.lm_head(hidden)[0].softmax(-1)
        probabilities[:, MASK_ID] = 0
        masked = [i for i in range(1, BLOCK_SIZE) if block[i] == MASK_ID]
        committed = BLOCK_SIZE - len(masked)
        count = -(-(BLOCK_SIZE - committed) // (steps - step + 1))
        masked.sort(key=lambda i: (-float(probabilities[i].max()), i))
        for position in masked[:count]:
            block[position] = probabilities[position].argmax()
    return block.tolist()


@pytest.mark.parametrize("steps", [1, STEPS])
def test_replay_equals_real_greedy_decoding(case: Case, evaluated: Evaluated, steps: int) -> None:
    (score,) = [s for s in evaluated.report.scores if (s.drafter, s.steps) == ("teacher", steps)]
    draft = case.draft("trained")
    decoded, written = {}, 0
    for prompt in map(json.loads, (case.folder / "one.jsonl").read_text().splitlines()):
        ids = case.prompt_ids(prompt["turns"])
        answer, decoded[prompt["id"]] = decode(case.target, draft, ids, steps=steps)
        assert stored(evaluated.folder, ids) == [*ids, *answer], "decoding is lossless"
        written += len(answer)
    assert len(decoded) == 20
    assert {walk.name: list(walk.accepted) for walk in score.walks["one"]} == decoded
    lengths = [length for rounds in decoded.values() for length in rounds]
    assert score.tau["one"] == pytest.approx(1 + sum(lengths) / len(lengths))
    # A healthy mix: answers that stop and answers that are cut, rounds of every kind.
    assert min(lengths) == 0
    assert max(lengths) == BLOCK_SIZE - 1
    assert len(set(lengths)) >= 6
    assert 100 < written < len(decoded) * NEW_TOKENS


def test_a_second_turn_is_asked_after_the_first_answer(case: Case, evaluated: Evaluated) -> None:
    (score,) = [s for s in evaluated.report.scores if (s.drafter, s.steps) == ("student", 1)]
    names = [walk.name for walk in score.walks["two"]]
    assert names == [f"two-{i}{turn}" for i in range(6) for turn in ("", "/2")]
    draft = case.draft("trained")
    first_prompt = json.loads((case.folder / "two.jsonl").read_text().splitlines()[0])
    first, second = first_prompt["turns"]
    answer, _ = decode(case.target, draft, case.prompt_ids([first]), steps=1)
    said = case.tokenizer.decode([token for token in answer if token != STOP_ID])
    ids = case.prompt_ids([first, said, second])
    answer, rounds = decode(case.target, draft, ids, steps=1)
    assert stored(evaluated.folder, ids) == [*ids, *answer]
    assert list(score.walks["two"][1].accepted) == rounds


def stored(results: Path, prompt: list[int]) -> list[int]:
    """Prompt and answer as the verb kept them."""
    settings = json.loads((results / "answers/settings.json").read_text())
    found = AnswerFolder(results / "answers", settings).get(prompt)
    assert found is not None
    assert found.start == len(prompt)
    assert found.features().shape == (len(found.input_ids), len(LAYERS) * HIDDEN)
    return found.input_ids.tolist()


def test_the_table(evaluated: Evaluated) -> None:
    header, _, *rows = evaluated.table
    assert header == ["Drafter", "Passes", "one", "two", "Average", "Recovery", "%"]
    assert [row[:2] for row in rows] == [
        ["dflash", "1"],
        ["teacher", "1"],
        ["teacher", str(STEPS)],
        ["student", "1"],
    ]
    # The student is the teacher here, so it recovers nothing of what the passes gain.
    teacher, student = rows[1], rows[3]
    assert student[2:5] == teacher[2:5]
    assert student[5] == "0.00"
    assert float(rows[2][4]) > float(teacher[4]) > float(rows[0][4]) >= 1
    assert evaluated.report.text().splitlines()[2].split() == rows[0]


def test_what_is_recorded(case: Case, evaluated: Evaluated) -> None:
    content = json.loads(evaluated.results)
    details = content["details"]
    assert content["block_size"] == BLOCK_SIZE
    assert details["target"] == str(case.folder / "target")
    assert details["dtype"] == "float32"
    assert details["max_new_tokens"] == NEW_TOKENS
    assert details["left_out"] == {"one": [], "two": []}
    assert details["cache"] == {}
    assert len(details["chat_template"]) == 16
    assert details["date"].startswith("20")
    assert {"specforge-dstill", "torch", "transformers"} & set(details["versions"])
    checkpoints = details["checkpoints"]
    assert checkpoints["teacher"]["path"] == str(case.folder / "trained")
    assert checkpoints["teacher"]["weights"] == checkpoints["student"]["weights"]
    assert checkpoints["teacher"]["weights"] != checkpoints["dflash"]["weights"]
    assert checkpoints["teacher"]["parameters"] > 1000
    score = content["scores"][1]
    assert score["data_sets"]["one"]["answers"] == 20
    taus = [found["tau"] for found in score["data_sets"].values()]
    assert score["average"] == pytest.approx(sum(taus) / 2)
    assert score["average"] == pytest.approx(1 + sum(score["by_position"]))
    assert (evaluated.folder / "acceptance.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the target is loaded, though every answer is there")

    monkeypatch.setattr(targets, "load_model", refuse)


@pytest.mark.usefixtures("no_target")
def test_answers_are_used_again(case: Case, evaluated: Evaluated) -> None:
    """Other drafters, batches and outputs, and fewer prompts, need no answer anew."""
    words = [
        f"--prompts=one={case.folder / 'one.jsonl'}",
        f"--drafter=again={case.folder / 'trained'}",
        f"--answers={evaluated.folder / 'answers'}",
        "--steps=1",
        "--limit=7",
        "--batch-size=3",
    ]
    assert evaluate(case, *words, output="again") == 0
    again = report_from_json((case.folder / "again/results.json").read_text())
    assert again.scores[0].walks["one"] == evaluated.report.scores[1].walks["one"][:7]


def test_only_new_prompts_are_answered_and_a_stopped_run_goes_on(
    case: Case, evaluated: Evaluated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "more.jsonl"
    write_prompts(prompts, [*([text] for text in texts(20, seed=0)), ["w1 w2"], ["w3 w4 w5"]])
    answers = evaluated.folder / "answers"
    before = {path: path.stat().st_mtime_ns for path in answers.iterdir()}
    words = [
        f"--prompts=more={prompts}",
        f"--drafter=again={case.folder / 'trained'}:1",
        f"--answers={answers}",
        "--batch-size=1",
    ]
    whole = replay.generate_batch

    def stop_at_the_second(model: Any, batch: list[list[int]], decoding: Decoding) -> Any:
        if len(list(answers.iterdir())) > len(before):
            raise KeyboardInterrupt
        return whole(model, batch, decoding)

    monkeypatch.setattr(replay, "generate_batch", stop_at_the_second)
    assert evaluate(case, *words, output="more") == 130
    assert len(list(answers.iterdir())) == len(before) + 1
    monkeypatch.setattr(replay, "generate_batch", whole)
    assert evaluate(case, *words, output="more") == 0
    after = {path: path.stat().st_mtime_ns for path in answers.iterdir()}
    assert len(after) == len(before) + 2
    assert after.items() >= before.items()


def good_words(case: Case) -> list[str]:
    return [
        f"--prompts=one={case.folder / 'one.jsonl'}",
        f"--drafter=student={case.folder / 'trained'}:1",
    ]


def mistake(capsys: pytest.CaptureFixture[str], status: int) -> str:
    """The one line on stderr of a user's mistake."""
    assert status == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.usefixtures("no_target")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--drafter", "student"], "'student': a drafter is NAME=CHECKPOINT"),
        (["--drafter", "a b=x"], "a drafter is NAME=CHECKPOINT"),
        (["--prompts", "one.jsonl"], "'one.jsonl': a data set is NAME=FILE"),
        (["--steps", "1,x"], "'1,x' is no list of passes such as 1,8"),
        (["--drafter", "other=nowhere/at/all"], "--drafter other: no checkpoint nowhere/at/all"),
        (["--drafter", "other={folder}"], "--drafter other: no drafter to start from"),
        (["--drafter", "other={folder}/trained:8"], "--drafter other at 8 passes: "),
        (["--drafter", "other={folder}/trained:0"], "--drafter other at 0 passes: "),
        (["--drafter", "student={folder}/trained"], "the name 'student' is given twice"),
        (["--prompts", "one={folder}/two.jsonl"], "the name 'one' is given twice"),
        (["--prompts", "empty={folder}/empty.jsonl"], "empty.jsonl: the file is empty"),
        (["--prompts", "none={folder}/none.jsonl"], "none.jsonl: cannot be read"),
        (["--config", "{folder}/none.yaml"], "no run file {folder}/none.yaml"),
        (["model.draft_model_config={folder}/run.json"], "run.json"),
    ],
)
def test_mistakes_are_one_line(
    case: Case, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (case.folder / "empty.jsonl").write_text("")
    given = [word.format(folder=case.folder) for word in words]
    line = mistake(capsys, evaluate(case, *good_words(case), *given, output="refused"))
    assert said.format(folder=case.folder) in line
    assert not (case.folder / "refused/results.json").exists()


@pytest.mark.usefixtures("no_target")
def test_answers_of_other_settings_are_refused(
    case: Case, evaluated: Evaluated, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*good_words(case), "--overwrite"]
    line = mistake(capsys, evaluate(case, *words, new_tokens=8))
    assert f"(max_new_tokens was {NEW_TOKENS} and is now 8)" in line
    assert "--answers" in line
    line = mistake(capsys, evaluate(case, *words, '--template-kwargs={"x": 1}'))
    assert "template_kwargs was {} and is now {'x': 1}" in line
    assert (evaluated.folder / "results.json").read_text() == evaluated.results


def test_a_retrained_target_is_another_target(case: Case, evaluated: Evaluated) -> None:
    """Same folder name, same configuration, other weights."""
    again = save_target(case.folder / "retrained", seed=1)
    assert weights_fingerprint(str(again)) != weights_fingerprint(str(case.folder / "target"))
    copy = save_target(case.folder / "copy", seed=0)
    assert weights_fingerprint(str(copy)) == weights_fingerprint(str(case.folder / "target"))
    assert weights_fingerprint("some/model") is None


def test_another_template_than_the_caches_is_warned_of(
    case: Case, evaluated: Evaluated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = json.loads(evaluated.results)["details"]["chat_template"]
    told = {"target": "t", "target_hash": "", "target_layer_ids": (), "strategy": "dflash"}
    text = {"conversations": "", "conversations_hash": "", "conversation_count": 0}
    sizes = {"keys": (), "width": 0, "dtype": "float32", "max_length": 0, "shard_size": 1}
    CacheManifest(
        **told,
        **text,
        **sizes,
        chat_template="tokenizer",
        chat_template_hash=own,
        template_kwargs={"thinking": True},
    ).write(tmp_path)
    words = [*good_words(case), "--limit=1", "--template-kwargs={}"]
    words += [f"--answers={evaluated.folder / 'answers'}", f"data.hidden_states_path={tmp_path}"]
    assert evaluate(case, *words, output="warned") == 0
    assert "in the feature cache: thinking = true" in capsys.readouterr().err
    details = json.loads((case.folder / "warned/results.json").read_text())["details"]
    assert details["cache"] == {"chat_template": own, "template_kwargs": {"thinking": True}}


@pytest.mark.usefixtures("no_target")
def test_results_of_others_are_not_written_over(
    case: Case, evaluated: Evaluated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of other drafters, passes and data sets; --overwrite does, and so does a command of more."""
    folder = case.folder / "kept"
    folder.mkdir()
    results = folder / "results.json"
    results.write_text(evaluated.results)
    answers = f"--answers={evaluated.folder / 'answers'}"
    drafter = f"--drafter=student={case.folder / 'trained'}"
    prompts = [f"--prompts={name}={case.folder / name}.jsonl" for name in ("one", "two")]
    line = mistake(capsys, evaluate(case, *good_words(case), answers, output="kept"))
    lost = f"holds dflash:1, teacher:1, teacher:{STEPS}, two, which this command does not measure"
    assert f"{results}: {lost} and would be lost; name another --output" in line
    assert results.read_text() == evaluated.results
    assert evaluate(case, *good_words(case), answers, "--overwrite", output="kept") == 0
    assert evaluate(case, *prompts, drafter, answers, output="kept") == 0
    more = report_from_json(results.read_text())
    assert [(s.drafter, s.steps) for s in more.scores] == [("student", 1), ("student", STEPS)]
    assert more.data_sets == ("one", "two")
    capsys.readouterr()
    line = mistake(capsys, evaluate(case, *prompts, f"{drafter}:1", answers, output="kept"))
    assert f"holds student:{STEPS}, which" in line


def test_a_file_that_is_no_result_is_not_written_over(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    (case.folder / "mine").mkdir()
    (case.folder / "mine/results.json").write_text('{"my": "own"}')
    line = mistake(capsys, evaluate(case, *good_words(case), output="mine"))
    assert "results.json: not an evaluation's results of format 1; name another --output" in line


def test_what_the_generation_config_adds_is_told_and_recorded(
    case: Case,
    evaluated: Evaluated,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers were made without; they are found again, as the setting is not of theirs."""
    monkeypatch.setattr(evaluation_plan, "unheeded_settings", lambda *_, **__: {"min_p": 0.1})
    words = [*good_words(case), "--limit=1", f"--answers={evaluated.folder / 'answers'}"]
    assert evaluate(case, *words, output="unheeded") == 0
    assert "generation_config.json sets min_p = 0.1, which is not" in capsys.readouterr().err
    details = json.loads((case.folder / "unheeded/results.json").read_text())["details"]
    assert details["generation_config_unheeded"] == {"min_p": 0.1}
    assert "generation_config_unheeded" not in evaluated.report.details


def test_a_torn_answer_is_named(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*good_words(case), "--limit=1", f"--answers={tmp_path}"]
    assert evaluate(case, *words, output="torn") == 0
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-10])
    capsys.readouterr()
    line = mistake(capsys, evaluate(case, *words, output="torn"))
    assert f"{path}: is no whole answer" in line


def test_a_prompt_that_fills_the_window_is_left_out(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "long.jsonl"
    write_prompts(prompts, [["w1 " * 600], ["w1 w2", "w3 " * 600]])
    words = [
        f"--prompts=long={prompts}",
        f"--drafter=student={case.folder / 'trained'}:1",
        f"--answers={tmp_path / 'answers'}",
    ]
    assert evaluate(case, *words, output="long") == 0
    content = json.loads((case.folder / "long/results.json").read_text())
    assert content["details"]["left_out"] == {"long": ["long-0", "long-1/2"]}
    assert list(content["scores"][0]["data_sets"]["long"]["accepted"]) == ["long-1"]
    assert "2 turns left out" in capsys.readouterr().err


def test_how_to_measure_must_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["evaluate", "--prompts=a=b", "--drafter=c=d"])
    assert "--replay" in mistake(capsys, status)
