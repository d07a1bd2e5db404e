"""``specforge-dstill regenerate``: the target's own answers to a file of prompts."""

from __future__ import annotations

import argparse
import math
import os
import sys
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

from specforge_dstill.arguments import add_placement, json_object, positive
from specforge_dstill.console import say
from specforge_dstill.data.answer_openai import OpenAIAnswers, refuse_own_fields
from specforge_dstill.data.answer_transformers import TransformersAnswers
from specforge_dstill.data.answering import Answers, answer_missing
from specforge_dstill.data.answers_file import AnswersFile
from specforge_dstill.data.benchmarks import BENCHMARKS, benchmark_prompts
from specforge_dstill.data.conversations import Prompt, read_prompts
from specforge_dstill.data.hub import hub_name
from specforge_dstill.data.targets import DTYPES
from specforge_dstill.data.template_day import stopped_clock
from specforge_dstill.data.template_options import (
    in_template_kwargs,
    refuse_template_options,
    template_options,
)
from specforge_dstill.data.versions import library_versions
from specforge_dstill.errors import UserError
from specforge_dstill.stopping import ending_though_stuck

EXAMPLE = """example:
  specforge-dstill regenerate --backend transformers --target Qwen/Qwen3-4B \\
      --prompts prompts.jsonl --output answers.jsonl
  specforge-dstill regenerate --backend openai --base-url http://127.0.0.1:30000/v1 \\
      --model Qwen/Qwen3-4B --concurrency 64 --prompts mlabonne/open-perfectblend \\
      --output answers.jsonl
Run the same command again after an interruption: it answers what is missing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add(
        "--prompts",
        required=True,
        metavar="FILE|NAME",
        help='JSONL of {"turns": […]} or of conversations, whose user turns are answered anew, '
        "without their tools; or a data set on the Hub: NAME[:split], hub:NAME[:split]; or a "
        "benchmark's name (gsm8k)",
    )
    add("--output", required=True, type=Path, metavar="FILE", help="the conversations, JSONL")
    add("--backend", choices=("transformers", "openai"), default="transformers")
    add("--limit", type=positive, metavar="N", help="answer the first N prompts only")
    add("--temperature", type=float, default=0.7, help="0 is greedy (default: 0.7)")
    add("--top-p", type=float, default=1.0, help="default: 1.0")
    add("--max-new-tokens", type=positive, default=2048, help="tokens an answer (default: 2048)")
    add("--seed", type=int, default=0)
    add(
        "--template-kwargs",
        type=json_object,
        default={},
        metavar="JSON",
        help="""for the chat template, such as '{"enable_thinking": false}' or, for GPT-OSS,
        '{"reasoning_effort": "low"}'; capture takes them from the answers' settings""",
    )
    transformers = parser.add_argument_group("--backend transformers")
    local = transformers.add_argument
    local("--target", help="the target: a folder or a name on the Hub")
    local("--batch-size", type=positive, default=16)
    local("--dtype", choices=DTYPES, help="default: float32 on a CPU, else the checkpoint's")
    add_placement(transformers, default="cuda when there is a GPU")
    remote = parser.add_argument_group(
        "--backend openai",
        "A chat template that prints the day (GPT-OSS's) prints the server's, which changes at\n"
        "midnight; capture has the day of the first run.",
    ).add_argument
    remote("--base-url", help="such as http://127.0.0.1:30000/v1; the key is OPENAI_API_KEY")
    remote("--model", help="the model's name at the endpoint")
    remote("--concurrency", type=positive, default=32, help="requests in flight (default: 32)")
    remote("--retries", type=int, default=5, help="tries after a failed one (default: 5)")
    remote("--timeout", type=float, default=600.0, help="seconds a request (default: 600)")
    remote(
        "--extra-body",
        type=json_object,
        default={},
        metavar="JSON",
        help="""added to each request, such as '{"top_k": 20}'""",
    )


def run(args: argparse.Namespace) -> int:
    """Answer what is missing from the output; 0 when that is done, though some may be refused.

    Raises: ``UserError`` when none has an answer.
    """
    _check(args)
    prompts = _prompts(args.prompts, limit=args.limit)
    with AnswersFile.opened(args.output, _settings(args), prompts) as output:
        missing = [p for p in prompts if p.id not in output.done]
        left_out: dict[str, str] = {}
        if missing:
            answers = _openai(args) if args.backend == "openai" else _transformers(args, output)
            # A stop does not wait for a server that hangs: what was answered is in the file.
            with ending_though_stuck(say):
                left_out = answer_missing(answers, missing, output, total=len(prompts))
        output.put_in_order()
    print(f"{args.output}: {len(prompts) - len(left_out)} of {len(prompts)} conversations")
    for name, why in islice(left_out.items(), 5):
        print(f"no answer to {name!r}: {why}", file=sys.stderr)
    return 0


def _check(args: argparse.Namespace) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "regenerate is one process: start it once, without torchrun; several GPUs answer "
            "behind a server and --backend openai"
        )
    wanted = ("base_url", "model") if args.backend == "openai" else ("target",)
    for name in wanted:
        if not getattr(args, name):
            raise UserError(f"--backend {args.backend} needs --{name.replace('_', '-')}")
    if not 0 <= args.temperature < math.inf:
        raise UserError(f"--temperature must be 0 or more, not {args.temperature:g}")
    if not 0 < args.top_p <= 1:
        raise UserError(f"--top-p must be over 0 and at most 1, not {args.top_p:g}")
    if args.backend == "openai" and args.retries < 0:
        raise UserError(f"--retries must be 0 or more, not {args.retries}")
    if args.backend == "openai":
        refuse_template_options(args.extra_body, args.template_kwargs)
        refuse_own_fields(args.extra_body)
    elif args.extra_body:
        raise UserError("--extra-body is for a server's requests: --backend openai")


def _prompts(source: str, *, limit: int | None) -> list[Prompt]:
    if source in BENCHMARKS and not Path(source).exists():
        return benchmark_prompts(source, limit=limit)
    return read_prompts(source, limit=limit)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """What decides the answers; kept beside the output and in the cache's manifest."""
    hub = hub_name(args.prompts)
    remote = args.backend == "openai"
    settings = {
        "prompts": hub[0] if hub else Path(args.prompts).name,
        "backend": args.backend,
        "target": args.model if remote else args.target,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "max_new_tokens": args.max_new_tokens,
        "seed": args.seed,
        "template_kwargs": args.template_kwargs,
        "date": date.today().isoformat(),
        "versions": library_versions("openai" if remote else "transformers", "torch"),
    }
    settings |= {"extra_body": args.extra_body} if remote else {"dtype": args.dtype}
    return in_template_kwargs(settings)


def _openai(args: argparse.Namespace) -> Answers:
    return OpenAIAnswers(
        base_url=args.base_url,
        model=args.model,
        temperature=args.temperature,
        top_p=args.top_p,
        max_new_tokens=args.max_new_tokens,
        seed=args.seed,
        concurrency=args.concurrency,
        retries=args.retries,
        timeout=args.timeout,
        extra_body={**args.extra_body, **template_options(args.template_kwargs)},
    )


def _transformers(args: argparse.Namespace, output: AnswersFile) -> Answers:
    from specforge_dstill.data import targets
    from specforge_dstill.data.chat import stop_token_ids
    from specforge_dstill.data.generation import Decoding
    from specforge_dstill.data.generation_config import unheeded_settings, unheeded_text
    from specforge_dstill.evaluation.sampling import Sampling

    if unheeded := unheeded_settings(args.target, sampled=args.temperature > 0):
        say(unheeded_text(unheeded))
    tokenizer = targets.load_tokenizer(args.target)
    model = targets.load_model(
        args.target,
        dtype=args.dtype,
        device=args.device,
        attn_implementation=args.attn_implementation,
    )
    decoding = Decoding(
        stop_token_ids(args.target, tokenizer),
        args.max_new_tokens,
        Sampling(args.temperature, top_p=args.top_p),
        targets.max_positions(model.config),
    )
    # A run that goes on with earlier answers goes on with their day.
    variables = args.template_kwargs | stopped_clock(output.settings.get("date", ""))
    return TransformersAnswers(model, tokenizer, decoding, args.seed, args.batch_size, variables)
