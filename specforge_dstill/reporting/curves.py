"""What training logged, read from SpecForge's lines or from its TensorBoard files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specforge_dstill.errors import UserError
from specforge_dstill.files import reading

#: Of a step: its number, and the printed dict of its numbers.
_LINE = re.compile(r"^step (\d+): \{(.*)\}\s*$", re.MULTILINE)
_NUMBER = re.compile(r"'([^']+)': (-?\d[\d.]*(?:e[+-]?\d+)?)(?=[,}]|$)")
#: What is shown; of evaluations in training whatever was logged but simulated acceptance, which
#: is plain accuracy for block drafters.
_SHOWN, _EVALUATION, _NOT = ("accept_length", "acc", "loss"), "eval/", "simulated"
_EVENTS = "events.out.tfevents.*"

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Curve:
    """One number of one training run.

    Attributes:
        name: of the run; a drafter's name gives it that drafter's colour.
        points: (step, value).
    """

    name: str
    metric: str
    points: Points


def read_curves(name: str, path: Path) -> list[Curve]:
    """Of a log file, or of a folder with TensorBoard files. Raises: ``UserError`` without any."""
    events = sorted(path.rglob(_EVENTS)) if path.is_dir() else []
    if path.is_dir() and not events:
        raise UserError(f"{path}: holds no TensorBoard files; name a log or the folder of a run")
    found = _from_events(events) if events else _from_lines(path)
    curves = [Curve(name, m, tuple(sorted(points))) for m, points in found.items() if _shown(m)]
    if not curves:
        raise UserError(f"{path}: holds no steps of a training (lines such as 'step 50: {{…}}')")
    return curves


def _shown(metric: str) -> bool:
    return metric in _SHOWN or (metric.startswith(_EVALUATION) and _NOT not in metric)


def _from_lines(path: Path) -> dict[str, list[tuple[int, float]]]:
    with reading(path):
        text = path.read_text(encoding="utf-8", errors="replace")
    return _collected(
        (metric, int(step), float(value))
        for step, numbers in _LINE.findall(text)
        for metric, value in _NUMBER.findall(numbers)
    )


def _from_events(files: Sequence[Path]) -> dict[str, list[tuple[int, float]]]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise UserError(
            f"{files[0]}: TensorBoard's files need its package: pip install tensorboard; or name "
            "the training's log"
        ) from error
    found: dict[str, list[tuple[int, float]]] = {}
    for file in files:
        events = EventAccumulator(str(file), size_guidance={"scalars": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend((e.step, e.value) for e in events.Scalars(tag))
    # A resumed training logs some steps again; the last word counts.
    return {tag: list(dict(points).items()) for tag, points in found.items()}


def _collected(
    numbers: Iterator[tuple[str, int, float]],
) -> dict[str, list[tuple[int, float]]]:
    by_metric: dict[str, dict[int, float]] = {}
    for metric, step, value in numbers:
        by_metric.setdefault(metric, {})[step] = value
    return {metric: list(points.items()) for metric, points in by_metric.items()}
