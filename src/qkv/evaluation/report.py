"""Results as a person reads them, several models side by side, and as a file from which they can be
had again.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.text import Text

from qkv import storage
from qkv.bootstrap import LEAST
from qkv.evaluation.evaluate import EvaluationResult
from qkv.evaluation.intervals import Score
from qkv.evaluation.task_file import EvaluationTask
from qkv.tables import Table
from qkv.version import __version__


def shown(score: Score) -> str:
    """43.5% [36.8, 50.4], or 43.5% [-] where there is no interval."""
    ends = [number(end, score.percent) for end in (score.low, score.high) if end is not None]
    return f"{number(score.value, score.percent)}{'%' if score.percent else ''} [{', '.join(ends) or '-'}]"


def number(value: float, percent: bool = False) -> str:
    if percent:
        return f"{100 * value:.1f}"

    return (
        f"{value:.3f}"
        if value < 10
        else f"{value:.2f}"
        if value < 1000
        else f"{value:,.0f}"
        if value < 1e6
        else f"{value:.2e}"
    )


def table(results: Sequence[EvaluationResult]) -> Table:
    """A row for each score, a column for each model, the best of several in bold."""
    models = list(dict.fromkeys(result.model for result in results))
    made = Table(
        title_justify="left",
        header_style="bold",
        caption="[ ]: 95% intervals",
        caption_justify="left",
    )

    made.add_column("task")

    for name in ("shots", "rows"):
        made.add_column(name, justify="right")

    made.add_column("score")

    for model in models:
        made.add_column(Text(model), justify="right", overflow="fold")

    asked = dict.fromkeys((result.task, result.shots) for result in results)

    for task, shots in asked:
        of_task = {
            result.model: result
            for result in results
            if (result.task, result.shots) == (task, shots)
        }
        some = next(iter(of_task.values()))
        for place, score in enumerate(some.scores):
            found = {
                model: next((each for each in result.scores if each.name == score.name), None)
                for model, result in of_task.items()
            }
            values = [each.value for each in found.values() if each is not None]
            best = max(values) if score.higher_is_better else min(values)
            cells = []
            for model in models:
                each = found.get(model)
                bold = each is not None and len(models) > 1 and each.value == best
                cells.append(
                    Text("-" if each is None else shown(each), style="bold" if bold else "")
                )

            first = (task, str(shots), f"{some.rows:,}") if place == 0 else ("", "", "")
            made.add_row(*first, score.name, *cells)

        made.add_section()

    return made


def notes(results: Sequence[EvaluationResult]) -> list[str]:
    """The protocol of each task in a line, once where it is the same for all models."""
    lines: dict[str, list[str]] = {}
    for result in results:
        chance = (
            () if result.chance is None else (f"guessing is right in {100 * result.chance:.1f}%",)
        )
        few = any(score.low is None for score in result.scores)
        no_interval = (f"[-]: fewer than {LEAST} parts to draw an interval from",) if few else ()
        told = (*result.said, *chance, *no_interval)
        line = f"{result.task}: {'; '.join(told)}"
        if told:
            lines.setdefault(line, []).append(result.model)

    models = {result.model for result in results}

    return [
        line if set(who) == models else f"{line} ({', '.join(who)})" for line, who in lines.items()
    ]


def as_json(
    results: Sequence[EvaluationResult],
    tasks: Sequence[EvaluationTask],
    data: Mapping[str, Any],
    models: Mapping[str, Any],
    asked: Mapping[str, Any],
    failure: str = "",
) -> dict[str, Any]:
    """Everything that is needed to repeat it: what was asked, of whom, with which files, and why it
    ended early.
    """
    return {
        "results": [asdict(result) for result in results],
        "tasks": {task.name: task.as_json() for task in tasks},
        "data": dict(data),
        "models": dict(models),
        "asked": dict(asked),
        "failure": failure or None,
        **made_with(),
    }


def made_with() -> dict[str, Any]:
    """By what, and when."""
    versions = {"qkv": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"versions": versions, "date": datetime.now(UTC).isoformat(timespec="seconds")}


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Whole or not at all. JSON has no infinite numbers: such a perplexity is null."""
    storage.write_text(
        path, json.dumps(finite(found), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )


def finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]

    return None if isinstance(value, float) and not math.isfinite(value) else value
