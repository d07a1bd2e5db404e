"""Measuring against servers: with a drafter, without one, or both in turn."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from specforge_dstill.console import say
from specforge_dstill.data.conversations import Prompt
from specforge_dstill.data.progress import Progress
from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.interleaved import WARM_UP_RUNS, WARM_UP_TOKENS
from specforge_dstill.evaluation.sampling import Sampling
from specforge_dstill.evaluation.serving import Served, ServingReport
from specforge_dstill.evaluation.speed import PLAIN
from specforge_dstill.reporting.served_warnings import launch_warnings
from specforge_dstill.runfile import DEFAULT_PATH, load_run
from specforge_dstill.servers.client import Client
from specforge_dstill.servers.connect import check_alike, connect
from specforge_dstill.servers.endpoint import Endpoint
from specforge_dstill.servers.file import ServersFile
from specforge_dstill.servers.load_point import LoadPoint, measure
from specforge_dstill.verbs.evaluation_inputs import check_distinct, prompts_told
from specforge_dstill.verbs.run_facts import cache_settings, feature_cache

_TIMED = (
    "A request's time runs from sending it to its whole answer, not streamed: reading the prompt "
    "and waiting for a place count, with a drafter and without. A prompt's second turn (MT-Bench) "
    "follows the server's own first answer: with a drafter it may be another request than without."
)


@dataclass(frozen=True)
class ServersRoute:
    """``evaluate --server``.

    Attributes:
        prompts: by data set.
        clients: by the drafter's name, None for the server without one; that comes first.
        template_kwargs: for the chat template, sent with every request.
        cache: how the feature cache was formatted, {} where that is unknown.
    """

    args: argparse.Namespace
    samplings: Sequence[Sampling]
    prompts: Mapping[str, Sequence[Prompt]]
    clients: Mapping[str | None, Client]
    template_kwargs: Mapping[str, Any]
    cache: Mapping[str, Any]

    @classmethod
    def of(cls, args: argparse.Namespace) -> ServersRoute:
        """Check the command line, and look at the servers."""
        drafter = _drafter(args)
        samplings = _samplings(args)
        check_distinct("--prompts", [chosen.name for chosen in args.prompts])
        cache = None
        if args.config or args.overrides or Path(DEFAULT_PATH).is_file():
            cache = feature_cache(load_run(args.config, args.overrides, "dflash"))
        kwargs = args.template_kwargs
        if kwargs is None:
            kwargs = cache.template_kwargs if cache else {}
        urls = [(None, args.plain_server), (drafter, args.server)]
        clients = {
            name: connect(
                Endpoint.at(url, timeout=args.timeout),
                name,
                engine=args.engine,
                model=args.model,
                template_kwargs=kwargs,
            )
            for name, url in urls
            if url
        }
        check_alike(list(clients.values()))
        prompts = {chosen.name: chosen.prompts(limit=args.limit) for chosen in args.prompts}
        return cls(args, samplings, prompts, clients, kwargs, cache_settings(cache))

    def measure(self, path: Path) -> ServingReport:
        """Measure the cells that are not in ``path`` yet, writing it after each; all of them."""
        file = ServersFile(path, self._details())
        for warning in launch_warnings(file.details):
            say(warning)
        cells = list(self._cells())
        missing = [cell for cell in cells if not file.has(cell)]
        if len(missing) < len(cells):
            say(
                f"{len(cells) - len(missing)} of {len(cells)} cells were measured before, the last "
                f"on {file.report.details['date']}; another --output measures them anew"
            )
        self._warn_of_few(missing)
        total = sum(len(prompt.turns) for c in missing for prompt in self.prompts[c.data_set])
        lock = Lock()
        with Progress("requests", total=total, unit="request") as progress:

            def update() -> None:
                with lock:
                    progress.advance()

            for cell in missing:
                served = measure(
                    cell,
                    self.clients[cell.drafter],
                    self.prompts[cell.data_set],
                    max_tokens=self.args.max_new_tokens,
                    update=update,
                )
                file.add(served)
                _tell(cell, served)
        return file.report

    def _cells(self) -> Iterator[LoadPoint]:
        """With both servers, each cell without and with the drafter in turn."""
        for data_set in self.prompts:
            for sampling in self.samplings:
                for concurrency in self.args.concurrency:
                    for drafter in self.clients:
                        yield LoadPoint(drafter, data_set, sampling, concurrency)

    def _warn_of_few(self, cells: Sequence[LoadPoint]) -> None:
        for data_set, prompts in self.prompts.items():
            most = max((c.concurrency for c in cells if c.data_set == data_set), default=0)
            if len(prompts) < most:
                say(f"{data_set}: {len(prompts)} prompts cannot keep {most} requests in flight")

    def _details(self) -> dict[str, Any]:
        args, client = self.args, next(iter(self.clients.values()))
        return {
            "measured": "against servers",
            "engine": client.engine.name,
            "versions": {client.engine.name: client.engine.version},
            "target": client.model,
            "template_kwargs": self.template_kwargs,
            "max_new_tokens": args.max_new_tokens,
            "top_p": args.top_p,
            "top_k": args.top_k,
            "warm_up": {"runs": WARM_UP_RUNS, "tokens": WARM_UP_TOKENS},
            "note": f"{client.engine.note} {_TIMED}",
            "date": datetime.now(UTC).isoformat(sep=" ", timespec="minutes"),
            "cache": self.cache,
            "prompts": prompts_told(args.prompts, self.prompts, limit=args.limit),
            "servers": {
                name or PLAIN: {"url": one.endpoint.url, **one.engine.about}
                for name, one in self.clients.items()
            },
        }


def _drafter(args: argparse.Namespace) -> str | None:
    """The name of the drafter behind ``--server``; None without that option."""
    names = [chosen.name for chosen in args.drafter or ()]
    if bool(names) != bool(args.server):
        raise UserError(
            "--server needs --drafter NAME, what to call the server's drafter in the tables"
            if args.server
            else "--drafter names the drafter of --server; --plain-server has none"
        )
    if len(names) > 1:
        raise UserError(
            f"--server has one drafter, not {', '.join(names)}; measure them one after the other, "
            "their results gather in --output"
        )
    for chosen in args.drafter or ():
        if chosen.checkpoint or chosen.name == PLAIN:
            raise UserError(
                f"--drafter {chosen.name}: with --server it is a bare name (not {PLAIN!r}); the "
                "server was started with its drafter"
            )
    return names[0] if names else None


def _samplings(args: argparse.Namespace) -> tuple[Sampling, ...]:
    """One for each temperature."""
    try:
        return tuple(Sampling(one, args.top_k, args.top_p) for one in args.temperature)
    except ValueError as error:
        raise UserError(f"--server: {error}") from None


def _tell(cell: LoadPoint, served: Served) -> None:
    """What of a cell is out of the ordinary."""
    if served.left_out:
        count, first = len(served.left_out), served.left_out[0]
        say(f"{cell}: {count} turns left out, the server refuses them (first: {first})")
    if served.retried:
        say(f"{cell}: {served.retried} requests were sent again; throughput counts the waiting")
    if served.drafted is not None and served.drafted[0] == 0:
        say(f"{cell}: the server did not draft a single time")
