"""What was measured, on what, when and with which settings; and what to be wary of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specforge_dstill.evaluation.replay import Walk
from specforge_dstill.reporting.grid import SpeedGrid
from specforge_dstill.reporting.prompts import prompt_of
from specforge_dstill.reporting.settings import Setting, template_text
from specforge_dstill.reporting.tables import Facts


def facts(setting: Setting, folders: Sequence[str]) -> Facts:
    """The box of a setting.

    Args:
        folders: of all reports, by their numbers.
    """
    details = setting.details
    told = {
        "Measured": str(details.get("measured", "")),
        "Target": setting.target,
        "Drafters": ", ".join(dict.fromkeys(method.drafter for method in setting.methods)),
        "Block size": str(setting.first.block_size),
        "Temperature": _sampling(setting),
        "Chat template": template_text(details.get("template_kwargs", {})),
        "Least confidence": _of(details, "min_confidence", "{:g}"),
        "Longest answer": _of(details, "max_new_tokens", "{} tokens"),
        "Prompts": ", ".join(_prompts(setting)),
        "Computed in": _computed(details),
        "Versions": ", ".join(f"{k} {v}" for k, v in details.get("versions", {}).items()),
        "When": ", ".join(_dates(setting)),
        "Results": ", ".join(folders[run] for run in setting.reports),
    }
    title = f"Setting {setting.letter}" if setting.letter else "What was measured"
    return Facts(title, tuple((name, value) for name, value in told.items() if value))


def serving_facts(grid: SpeedGrid, folders: Sequence[str]) -> Facts:
    """The box of servers.

    Args:
        folders: of all results, by their numbers.
    """
    details = grid.details
    temperatures = sorted({t for _, t, _ in grid.rates})
    told = {
        "Measured": f"against servers: {grid.engine}",
        "Target": grid.target,
        "Drafters": ", ".join(dict.fromkeys(method.drafter for method in grid.methods)),
        "Temperatures": ", ".join([*(f"{t:g}" for t in temperatures), *_kept(details)]),
        "Requests at a time": ", ".join(map(str, sorted({c for _, _, c in grid.rates}))),
        "Chat template": grid.reasoning,
        "Longest answer": _of(details, "max_new_tokens", "{} tokens"),
        "Prompts": ", ".join(_served_prompts(grid)),
        "Versions": ", ".join(f"{k} {v}" for k, v in details.get("versions", {}).items()),
        "When": str(details.get("date", "")),
        "Results": ", ".join(folders[run] for run in grid.runs),
    }
    return Facts(
        f"Servers{grid.suffix}", tuple((name, value) for name, value in told.items() if value)
    )


def _served_prompts(grid: SpeedGrid) -> Iterator[str]:
    for name, told in grid.details.get("prompts", {}).items():
        yield f"{name}: {told['count']} prompts ({', '.join(_origin(told))})"


def warnings(setting: Setting, folders: Sequence[str]) -> Iterator[str]:
    """Sentences about what may mislead."""
    where = f"Setting {setting.letter}: " if setting.letter else ""
    for text in dict.fromkeys(_warnings(setting, folders)):
        yield f"{where}{text}"


def _warnings(setting: Setting, folders: Sequence[str]) -> Iterator[str]:
    for run, report in setting.reports.items():
        yield from template_warnings(report.details)
        for name, missing in report.details.get("left_out", {}).items():
            if missing:
                yield f"{name}: {len(missing)} turns left out in {folders[run]} (window full)."
        for score in report.scores:
            same = score.speed.same if score.speed else None
            if same and same[0] < same[1]:
                yield (
                    f"{folders[run]}: {same[1] - same[0]} of {same[1]} greedy answers with "
                    f"{score.drafter} ({score.steps}) are not the target's own."
                )
    yield from _same_weights(setting, folders)
    yield from _fewer_runs(setting)
    versions = [report.details.get("versions") for report in setting.reports.values()]
    if any(found != versions[0] for found in versions):
        yield "the runs were measured with different versions of the libraries."


def template_warnings(details: Mapping[str, Any]) -> Iterator[str]:
    """Where the evaluation formats prompts otherwise than the cache that was trained on.

    Acceptance can change a lot with reasoning on or off. Nothing is said of a cache unknown.
    """
    cache = details.get("cache")
    if not cache:
        return
    told, trained = details.get("template_kwargs", {}), cache.get("template_kwargs", {})
    if told != trained:
        yield (
            f"the chat template was told: {template_text(told)}; in the feature cache: "
            f"{template_text(trained)}. Acceptance may differ for that alone."
        )
    here, there = details.get("chat_template"), cache.get("chat_template")
    if here and there and here != there:
        yield (
            f"the chat template ({here}) is not the feature cache's ({there}). Acceptance may "
            "differ for that alone."
        )


def _fewer_runs(setting: Setting) -> Iterator[str]:
    """Methods that not every run has, by their number of runs."""
    fewer: dict[int, list[str]] = {}
    for method in setting.methods:
        runs = len(setting.runs(method))
        if runs < len(setting.reports):
            fewer.setdefault(runs, []).append(str(method))
    for runs, methods in fewer.items():
        yield (
            f"{'; '.join(methods)}: measured in {runs} of {len(setting.reports)} runs. Beside the "
            "others' means theirs say little; differences are paired by run."
        )


def _same_weights(setting: Setting, folders: Sequence[str]) -> Iterator[str]:
    seen: dict[tuple[str, str], int] = {}
    for run, report in setting.reports.items():
        for name, checkpoint in report.details.get("checkpoints", {}).items():
            first = seen.setdefault((name, checkpoint.get("weights", "")), run)
            if first != run:
                yield (
                    f"{name} is the same checkpoint in {folders[first]} and {folders[run]}: the "
                    "interval over runs tells nothing about other seeds of training."
                )


def _sampling(setting: Setting) -> str:
    details = setting.details
    if setting.temperature == 0:
        return "0 (greedy)"
    rule = [f"rule {details['rule']}"] if "rule" in details else []
    return ", ".join([f"{setting.temperature:g}", *_kept(details), *rule])


def _kept(details: Mapping[str, Any]) -> list[str]:
    """Which tokens may be drawn."""
    return [f"{name} {details[name]:g}" for name in ("top_p", "top_k") if details.get(name)]


def _prompts(setting: Setting) -> Iterator[str]:
    told = setting.details.get("prompts", {})
    for name, walks in setting.first.scores[0].walks.items():
        origin = ", ".join(_origin(told.get(name, {})))
        yield f"{name}: {_count(walks)}" + (f" ({origin})" if origin else "")


def _origin(told: Mapping[str, Any]) -> Iterator[str]:
    """Where prompts come from, and a hash that tells files of one name apart."""
    if told.get("source"):
        yield str(told["source"])
    if "hash" in told:
        yield f"hash {told['hash']}"


def _count(walks: Sequence[Walk]) -> str:
    prompts = len(set(prompt_of([walk.name for walk in walks]).values()))
    told = f"{prompts} prompt{'s' if prompts != 1 else ''}"
    return told + (f", {len(walks)} turns" if len(walks) > prompts else "")


def _dates(setting: Setting) -> list[str]:
    found = [str(report.details.get("date", "")) for report in setting.reports.values()]
    return list(dict.fromkeys(date for date in found if date))


def _of(details: Mapping[str, Any], name: str, shape: str) -> str:
    return shape.format(details[name]) if name in details else ""


def _computed(details: Mapping[str, Any]) -> str:
    found = [_of(details, name, "{}") for name in ("dtype", "device", "device_name")]
    found.append(_of(details, "attn_implementation", "attention: {}"))
    found.append(_of(details, "threads", "threads: {}"))
    return ", ".join(filter(None, found))
