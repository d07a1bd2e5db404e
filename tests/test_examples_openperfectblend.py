"""The paper's route: its scripts run, and every program in them only takes notes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from specforge_dstill.cli import main, parser_of
from specforge_dstill.data.draft_config import resolve_draft
from specforge_dstill.data.target_identity import TargetShape
from specforge_dstill.export.draft_facts import DraftFacts
from specforge_dstill.export.launch_commands import launches
from specforge_dstill.export.layouts import NATIVE, native_config
from specforge_dstill.export.target_facts import TargetFacts
from specforge_dstill.files import json_bytes
from specforge_dstill.runfile import load_run
from specforge_dstill.train import build_parser
from specforge_dstill.train import main as train
from tests.documents import ROOT, fenced

FOLDER = ROOT / "examples" / "openperfectblend"
SCRIPTS = sorted([*FOLDER.glob("*.sh"), *FOLDER.glob("*.slurm")])
PROGRAMS = ("torchrun", "specforge-dstill", "python", "vllm")
#: In one piece: programs that run side by side take notes at once.
NOTE = """#!/bin/bash
words=$(printf '%s\\x1f' "${0##*/}" "$@")
printf '%s\\n' "$words" >> "$NOTES"
"""
#: Its export leaves a config, made before.
EXPORTS = (
    NOTE
    + """[ "$1" = export ] || exit 0
folder=${*: -1}
mkdir -p "$folder" && cp "$EXPORTED" "$folder/config.json"
"""
)
#: The server also notes which of vLLM's runners it was told to take.
VLLM = NOTE.replace('"${0##*/}" "$@"', '"${0##*/}" "$@" "runner=$VLLM_USE_V2_MODEL_RUNNER"')
#: Slurm's, for a job of 16 nodes, of which this is the fourth.
SLURM = {
    "scontrol": "#!/bin/bash\nprintf 'node1\\nnode2\\n'\n",
    "srun": '#!/bin/bash\nSLURM_NODEID=3 exec "$@"\n',
}
#: The server answers once it has taken its note.
CURL = "#!/bin/bash\nuntil grep -q ^vllm $NOTES; do sleep 0.01; done\n"
RUNNER = "VLLM_USE_V2_MODEL_RUNNER=1 "
Capsys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def commands_of(folder: Path, script: str, *words: str, **settings: str) -> list[list[str]]:
    """The commands that a script runs."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    ours = {"specforge-dstill": EXPORTS, "vllm": VLLM, "curl": CURL}
    for name, text in {**dict.fromkeys(PROGRAMS, NOTE), **SLURM, **ours}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    notes = folder / "notes"
    notes.write_text("")
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "NOTES": str(notes),
        "ANSWERS": str(folder / "answers.jsonl"),
        "SERVED": str(folder / "served"),
        "SLURM_NNODES": "16",
        "SLURM_JOB_NODELIST": "node[1-16]",
        **settings,
    }
    command = ["bash", str(FOLDER / script), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split("\x1f")[:-1] for line in notes.read_text().splitlines()]


def checked(words: list[str]) -> list[str]:
    """What torchrun starts, or the command itself, read as it would be read."""
    if words[0] == "torchrun":
        module = words.index("-m") + 1
        if words[module] == "specforge.train":
            args = build_parser().parse_intermixed_args(words[module + 1 :])
            load_run(args.config, args.overrides, args.mode)
            return words[module:]
        words = words[module:]
    assert words[0] in ("specforge-dstill", "specforge_dstill")
    args = parser_of(words[1]).parse_intermixed_args(words[2:])
    if getattr(args, "config", None):
        load_run(args.config, args.overrides, "dstill_teacher")
    return words[1:]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_servers_and_their_router(tmp_path: Path) -> None:
    words = sorted(commands_of(tmp_path, "serve.sh", "http://a:30000", "http://b:30000"))
    assert [command[2] for command in words] == [
        "sglang.launch_server",
        "sglang_router.launch_router",
    ]
    assert words[0][words[0].index("--dp-size") + 1] == "4"
    assert words[1][-2:] == ["http://a:30000", "http://b:30000"]


def test_answers_are_asked_for_as_in_the_paper(tmp_path: Path) -> None:
    (words,) = commands_of(tmp_path, "regenerate.sh", "http://a:30001", "--limit", "9")
    args = parser_of("regenerate").parse_intermixed_args(checked(words)[1:])
    assert args.temperature == 0.7
    assert args.template_kwargs == {"reasoning_effort": "medium"}
    assert (args.model, args.limit) == ("openai/gpt-oss-120b", 9)
    assert args.prompts == "mlabonne/open-perfectblend"
    assert args.base_url == "http://a:30001/v1"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, {"reasoning_effort": "medium"}),
        ({"NAME": "gemma-4-31b"}, {"enable_thinking": True}),
        ({"NAME": "nemotron-3.5-30b-a3b"}, {"enable_thinking": True}),
        ({"NAME": "qwen3-8b", "TEMPLATE": "{}"}, {}),
    ],
)
def test_the_template_is_told_the_same_in_answers_cache_and_benchmarks(
    tmp_path: Path, settings: dict[str, str], told: dict[str, object]
) -> None:
    """Gemma does not reason without; and no effort goes to a target that has none."""
    (answers,) = commands_of(tmp_path, "regenerate.sh", "http://a:30001", **settings)
    (cache,) = commands_of(tmp_path, "capture.sh", **settings)
    benchmarks = only("specforge-dstill", commands_of(tmp_path, "evaluate.sh", "plain", **settings))
    config = f"configs/{settings.get('NAME', 'gpt-oss-120b')}/dstill.yaml"
    for words in (answers, cache, benchmarks):
        verb, *rest = checked(words)
        args = parser_of(verb).parse_intermixed_args(rest)
        assert args.template_kwargs == told, verb
        if verb != "regenerate":  # evaluate warns where its cache was told otherwise
            assert args.config == config


def test_the_target_is_the_run_files_or_the_copy_that_is_named(tmp_path: Path) -> None:
    def targets(**settings: str) -> set[str]:
        (stage,) = commands_of(tmp_path, "train.sh", "dstill_teacher", **settings)
        (cache,) = commands_of(tmp_path, "capture.sh", **settings)
        found = {
            word.partition("=")[2]
            for words in (stage, cache)
            for word in words
            if word.startswith("model.target_model_path=")
        }
        found.add(only("vllm", commands_of(tmp_path, "evaluate.sh", "plain", **settings))[2])
        found.add(commands_of(tmp_path, "serve.sh", **settings)[0][4])
        return found

    assert targets(NAME="gemma-4-31b") == {"google/gemma-4-31B-it"}
    assert targets(TARGET="a/copy") == {"a/copy"}


@pytest.mark.parametrize(
    ("name", "parser"),
    [
        ("gpt-oss-120b", "gpt-oss"),
        ("gemma-4-26b-a4b", "gemma4"),
        ("nemotron-3.5-30b-a3b", "nemotron_3"),
        ("qwen3-4b", "qwen3"),
    ],
)
def test_each_targets_reasoning_is_set_apart(tmp_path: Path, name: str, parser: str) -> None:
    (words,) = commands_of(tmp_path, "serve.sh", NAME=name)
    assert words[words.index("--reasoning-parser") + 1] == parser


def test_a_job_runs_its_steps_on_every_node(tmp_path: Path) -> None:
    steps = ("capture", "dstill_teacher", "dstill_collect", "dstill_student")
    commands = commands_of(tmp_path, "job.slurm", *steps)
    for words in commands:
        assert words[words.index("--nnodes") + 1] == "16"
        assert words[words.index("--node_rank") + 1] == "3"
        assert words[words.index("--master_addr") + 1] == "node1"
    capture, *stages = (checked(words) for words in commands)
    args = parser_of("capture").parse_intermixed_args(capture[1:])
    assert (args.backend, args.tp_size) == ("sglang", 2)
    assert args.template_kwargs == {"reasoning_effort": "medium"}
    assert [words[words.index("--mode") + 1] for words in stages] == list(steps[1:])


def test_a_step_of_a_job_may_have_options(tmp_path: Path) -> None:
    step = "dstill_teacher run_id=dflash dstill.steps=1"
    (words,) = commands_of(tmp_path, "job.slurm", step)
    assert checked(words)[-3:] == step.split()


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("configs/*/")))
def test_every_target_has_its_route(tmp_path: Path, name: str) -> None:
    (words,) = commands_of(tmp_path, "train.sh", "dstill_student", NAME=name)
    assert f"configs/{name}/dstill.yaml" in checked(words)


def test_the_benchmarks_without_a_drafter_and_with_it(tmp_path: Path) -> None:
    words = ("--template-kwargs", "{}", "--output", "elsewhere")
    commands = commands_of(tmp_path, "evaluate.sh", "plain", *words)
    assert "--speculative-config" not in only("vllm", commands)
    args = parser_of("evaluate").parse_intermixed_args(
        checked(only("specforge-dstill", commands))[1:]
    )
    assert (args.drafter, args.server, args.template_kwargs) == (None, None, {})
    assert args.output == Path("elsewhere")

    exported = exported_config(tmp_path, "gpt-oss-120b")
    commands = commands_of(tmp_path, "evaluate.sh", "dstill_student", EXPORTED=exported[0])
    _, evaluate = (checked(words) for words in commands if words[0] == "specforge-dstill")
    args = parser_of("evaluate").parse_intermixed_args(evaluate[1:])
    assert [choice.name for choice in args.drafter] == ["student"]
    assert len(args.prompts) == 6
    assert list(args.concurrency) == [1, 8, 16, 32]


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("configs/*/")))
def test_a_drafter_is_served_as_export_says(tmp_path: Path, name: str) -> None:
    path, folder, command = exported_config(tmp_path, name)
    settings = {"NAME": name, "TARGET": "org/target", "EXPORTED": path}
    commands = commands_of(tmp_path, "evaluate.sh", "dstill_student", **settings)
    export = checked(next(words for words in commands if words[0] == "specforge-dstill"))
    assert (export[0], export[-1]) == ("export", folder)
    *words, runner = only("vllm", commands)
    speculative = words[words.index("--speculative-config") + 1]
    served = shlex.join([*words[:3], "--speculative-config", speculative])
    assert f"{runner.removeprefix('runner=') and RUNNER}{served}" == command


def exported_config(folder: Path, name: str) -> tuple[str, str, str]:
    """A config as export writes it, the folder that is served, and the command that it prints."""
    config = resolve_draft(load_run(f"configs/{name}/dstill.yaml", (), "dstill_teacher").config)
    shape = TargetShape(config.num_target_layers, config.hidden_size, config.vocab_size)
    target = TargetFacts("org/target", shape, None, ("Target",), None, None, "hash")
    facts, served = DraftFacts.of(config), str(folder / "served" / "dstill_student")
    _, vllm = launches(facts, layout=NATIVE, folder=served, target=target)
    path = folder / "exported.json"
    path.write_bytes(json_bytes(native_config(config, facts, target, dtype=torch.bfloat16)))
    assert vllm.command is not None
    return str(path), served, vllm.command


def only(program: str, commands: list[list[str]]) -> list[str]:
    (found,) = (words for words in commands if words[0] == program)
    return found


def estimate(capsys: Capsys, words: list[str]) -> str:
    capsys.readouterr()
    assert main(checked(words)) == 0
    return capsys.readouterr().out


def test_the_readme_tells_what_estimate_says(tmp_path: Path, capsys: Capsys) -> None:
    readme = (FOLDER / "README.md").read_text()
    teacher, rest = commands_of(tmp_path, "estimate.sh")
    told = [f"| {hours} |" for hours in hours_of(estimate(capsys, teacher))]
    both = estimate(capsys, rest)
    told += [f"| {hours} |" for hours in hours_of(both) if hours != "0.93"]
    told += ["| 0.93;", f"{size_of(both, 'feature cache')}, or 30.8 TB as fp8"]
    told += [f"| {size_of(both, 'trajectories')} |"]
    for name, shown in (
        ("gemma-4-31b", "Gemma-4-31B"),
        ("gemma-4-26b-a4b", "Gemma-4-26B-A4B"),
        ("nemotron-3.5-30b-a3b", "Nemotron-3.5-30B-A3B"),
    ):
        _, other = commands_of(tmp_path, "estimate.sh", NAME=name)
        told.append(f"{shown} {size_of(estimate(capsys, other), 'feature cache')}")
    _, dspark = commands_of(tmp_path, "estimate.sh", NAME="gpt-oss-120b-dspark")
    told.append(f"last states, too: {size_of(estimate(capsys, dspark), 'feature cache')}")
    text = " ".join(readme.split())
    for part in told:
        assert part in text, part


def hours_of(text: str) -> list[str]:
    found = re.findall(
        r"^  (?:capture|teacher|collect|student) +([\d.]+) (hours|minutes)", text, re.M
    )
    return [n if unit == "hours" else f"{float(n) / 60:.2g}" for n, unit in found]


def size_of(text: str, what: str) -> str:
    found = re.search(rf"^{what}: (.*)$", text, re.M)
    assert found
    return found[1]


def test_specforges_own_launcher_plans_a_node(capsys: Capsys) -> None:
    (words,) = (words for words in fenced(FOLDER / "README.md") if "--node-rank" in words)
    assert words[:3] == ["python", "-m", "specforge.train"]
    assert train([*words[3:], "--plan"]) == 0
    (command,) = json.loads(capsys.readouterr().out)["commands"]
    argv = command["argv"]
    assert argv[argv.index("--nnodes") + 1] == "16"
    assert argv[argv.index("--node_rank") + 1] == "3"


@pytest.mark.parametrize("mode", ["dstill_teacher", "dstill_student"])
def test_the_streaming_run_plans_servers_producer_and_ranks(
    capsys: Capsys, tiny_inputs: Path, mode: str
) -> None:
    (words,) = (words for words in fenced(FOLDER / "README.md") if "--plan" in words)
    assert words[:3] == ["python", "-m", "specforge.train"]
    there = [
        *("--mode", mode, f"model.target_model_path={tiny_inputs / 'target'}"),
        f"model.draft_model_config={tiny_inputs / 'draft.json'}",
    ]
    assert train([*words[3:], *there]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [command["label"] for command in plan["commands"]] == ["producer", "consumer"]
    assert len(plan["services"]) == 2
