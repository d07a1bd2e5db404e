"""The arguments of ``specforge-dstill evaluate`` and the examples below its ``--help``."""

from __future__ import annotations

import argparse
from pathlib import Path

from specforge_dstill.arguments import (
    add_placement,
    add_run_file,
    json_object,
    positive,
    positive_number,
)
from specforge_dstill.data.targets import DTYPES
from specforge_dstill.servers.connect import ENGINES
from specforge_dstill.verbs.decode_checks import REJECT
from specforge_dstill.verbs.evaluate_options import (
    captured_set,
    concurrencies,
    data_set,
    drafter_choice,
    steps_list,
    temperatures,
)

EXAMPLE = """example:
  specforge-dstill evaluate --replay --config dstill.yaml --steps 1,8 \\
      --prompts gsm8k=gsm8k.jsonl --prompts mt-bench=mt-bench.jsonl \\
      --drafter dflash=output/dflash-latest \\
      --drafter teacher=output/dstill_teacher-latest \\
      --drafter student=output/dstill_student-latest:1 --output results
Recovery (Eq. 13) needs a drafter named teacher, at one pass and at more, and one named student
(or student-…) at one pass; student-x-y is held against teacher-x-y, else teacher-x.
A command that measures all that OUTPUT holds, and more, takes its place; another one is refused.
Prompts of several turns give an answer a turn.
The target's answers are kept and used again. Other prompts are answered in addition; another
target, template, precision, or --max-new-tokens is refused and needs another --answers folder.

  specforge-dstill regenerate --backend openai --base-url http://node:30000/v1 --model TARGET \\
      --prompts gsm8k.jsonl --temperature 0 --output gsm8k-answers.jsonl
  torchrun --nproc_per_node 8 -m specforge_dstill capture --backend sglang --tp-size 4 \\
      --config dstill.yaml --conversations gsm8k-answers.jsonl --output captured/gsm8k
  specforge-dstill evaluate --replay --config dstill.yaml --captured gsm8k=captured/gsm8k \\
      --drafter teacher=output/dstill_teacher-latest --dtype bfloat16
is the same for a target that does not fit one device: of it no more than embeddings and head are
loaded. The answers are the server's, as template and tokenizer give them back from their text (a
last blank of one that was cut off is not scored), and the features those captured, as precise.

  specforge-dstill evaluate --decode --temperature 0.6 --top-p 0.95 --dtype bfloat16 \\
      --prompts gsm8k=gsm8k.jsonl --drafter student=output/dstill_student-latest:1
decodes for real, one prompt at a time: the target alone and with each drafter in turn, after four
runs of warm-up. S is the time per output token without a drafter over that with it, the reading
of the prompt included. "Same" counts greedy answers that are the target's own, token for token.
A run that was stopped goes on; other settings, libraries or processors need another --output.
Both rules keep the target's distribution: compare samples from the target and accepts what was
drafted alike; reject draws the draft, too, at the same temperature, top-k and top-p.

  specforge-dstill evaluate --plain-server http://127.0.0.1:30000 --prompts gsm8k
  specforge-dstill evaluate --server http://127.0.0.1:30000 --drafter student --prompts gsm8k
asks a running server of SGLang or vLLM, started without its drafter and then with it, so that one
GPU node can do both; results gather in OUTPUT/servers.json, and S needs both. Two servers that run
side by side can be given in one command. Cells (drafter, data set, temperature, concurrency) that
are complete are not measured again, and their number is told: give a retrained drafter another
name or --output. The server formats prompts by the target's own chat template
with --template-kwargs, by default those of the run file's feature cache (--config, else a
dstill.yaml in the current folder), for which alone it is read.
A request's time runs from sending it to its whole answer, over its tokens; answers are not
streamed. Prompts are read anew for each cell (cache_salt). vLLM counts for the whole server, so
requests of others are noticed and refused; for intervals of τ start it with
--per-request-spec-decode-metrics summary.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    add_run_file(parser)
    add = parser.add_argument
    add(
        "--replay",
        action="store_true",
        help="walk the target's greedy answers: exact for greedy decoding, without decoding",
    )
    add(
        "--decode",
        action="store_true",
        help="decode with each drafter and without: acceptance, speed-up, memory",
    )
    add(
        "--prompts",
        action="append",
        type=data_set,
        metavar="NAME[=SOURCE]",
        help="""one of gsm8k, math500, humaneval, mbpp (sanitized), mt-bench, swe-bench (Lite) from
        the Hub, as many prompts as the paper has; or NAME= a JSONL of {"turns": […]} or of
        conversations, or NAME=hub:DATASET[:split]; repeat it for more data sets""",
    )
    add(
        "--captured",
        action="append",
        type=captured_set,
        metavar="NAME=FOLDER",
        help="""in the place of --prompts, with --replay: a feature cache of the target's greedy
        answers, for a target that does not fit one device; repeat it for more data sets""",
    )
    add("--limit", type=positive, metavar="N", help="the first N prompts of each data set")
    add(
        "--drafter",
        action="append",
        type=drafter_choice,
        metavar="NAME=CHECKPOINT[:STEPS]",
        help="""a run folder, a checkpoint or a Hugging Face folder; repeat it for more drafters;
        with --server the bare NAME of its drafter""",
    )
    add(
        "--steps",
        type=steps_list,
        metavar="1,K",
        help="numbers of passes, for drafters without their own (default: 1 and dstill.steps)",
    )
    add(
        "--max-new-tokens",
        type=positive,
        help="an answer's (default: 2048; against servers the paper's 4096)",
    )
    add("--output", type=Path, default=Path("results"), metavar="FOLDER", help="default: results")
    add(
        "--overwrite",
        action="store_true",
        default=None,
        help="write over results in OUTPUT of drafters or data sets that are not measured now "
        "(default: they are kept, and the command refused)",
    )
    add(
        "--answers",
        type=Path,
        metavar="FOLDER",
        help="where --replay keeps the target's answers and features (default: OUTPUT/answers)",
    )
    add(
        "--template-kwargs",
        type=json_object,
        metavar="JSON",
        help="for the chat template (default: those of the feature cache, if there is one)",
    )
    add(
        "--batch-size",
        type=positive,
        help="answers at a time, of --replay (default: 16)",
    )
    add(
        "--dtype",
        choices=DTYPES,
        help="of target, features and drafters (default: float32, which makes replay exact)",
    )
    add(
        "--temperature",
        type=temperatures,
        metavar="T[,T]",
        help="0 is greedy; --decode takes one (default: 0; against servers 0,1)",
    )
    add("--top-p", type=float, metavar="P", help="as generate's, not with --replay (default: 1)")
    add("--top-k", type=int, metavar="K", help="as generate's, not with --replay (default: 0, all)")
    add(
        "--rule",
        choices=("compare", REJECT),
        help="with --decode; how drafts are verified (default: compare)",
    )
    add(
        "--min-confidence",
        type=float,
        metavar="P",
        help="with --decode and DSpark drafters of one pass: verify no token that is accepted with "
        "less than this probability, by the drafter's own confidence (default: whole blocks)",
    )
    add("--seed", type=int, help="with --decode, of sampled answers (default: 0)")
    add_placement(parser, default="cuda when there is a GPU")
    _add_servers(parser)


def _add_servers(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("against servers").add_argument
    add("--server", metavar="URL", help="a running server that has the drafter")
    add("--plain-server", metavar="URL", help="the same server without it, for S")
    add(
        "--concurrency",
        type=concurrencies,
        metavar="1,C",
        help="requests at a time (default: 1,8,16,32)",
    )
    add("--model", metavar="NAME", help="the model's name there (default: the only one)")
    add("--engine", choices=ENGINES, help="default: the server is asked")
    add("--timeout", type=positive_number, help="seconds an answer may take (default: 600)")
