"""Evaluation results as a table of several models, as notes, and as a JSON file."""

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
from qkv.tables import Table
from qkv.version import __version__


def format_score(score: Score) -> str:
    """A score with its interval: 43.5% [36.8, 50.4], or 43.5% [-] where there is no interval."""
    value = format_number(score.value, score.percent)
    if score.percent:
        value += "%"

    ends = []
    for end in (score.low, score.high):
        if end is not None:
            ends.append(format_number(end, score.percent))

    return f"{value} [{', '.join(ends) or '-'}]"


def format_number(value: float, percent: bool = False) -> str:
    """A number with about four digits; with `percent`, a fraction in percent."""
    if percent:
        return f"{100 * value:.1f}"
    if value < 10:
        return f"{value:.3f}"
    if value < 1000:
        return f"{value:.2f}"
    if value < 1e6:
        return f"{value:,.0f}"

    return f"{value:.2e}"


# Table


def score_table(results: Sequence[EvaluationResult]) -> Table:
    """A row for each score and a column for each model, with the best of several in bold."""
    models = list(dict.fromkeys(result.model for result in results))
    scores = empty_table(models)

    # Results of the same task and number of shots share a section.
    sections: dict[tuple[str, int], dict[str, EvaluationResult]] = {}
    for result in results:
        sections.setdefault((result.task, result.shots), {})[result.model] = result

    for (task, shots), by_model in sections.items():
        first = next(iter(by_model.values()))
        labels = (task, str(shots), f"{first.rows:,}")
        for score in first.scores:
            cells = score_cells(score, by_model, models)
            scores.add_row(*labels, score.name, *cells)
            labels = ("", "", "")

        scores.add_section()

    return scores


def empty_table(models: Sequence[str]) -> Table:
    """The table's header: task, shots, rows, score and the models."""
    scores = Table(
        title_justify="left",
        header_style="bold",
        caption="[ ]: 95% intervals",
        caption_justify="left",
    )
    scores.add_column("task")
    scores.add_column("shots", justify="right")
    scores.add_column("rows", justify="right")
    scores.add_column("score")
    for model in models:
        scores.add_column(Text(model), justify="right", overflow="fold")

    return scores


def score_cells(
    score: Score, by_model: Mapping[str, EvaluationResult], models: Sequence[str]
) -> list[Text]:
    """The cells of one score, a model each; - where a model has no such score."""
    entries: dict[str, Score] = {}
    values: list[float] = []
    for model, result in by_model.items():
        for candidate in result.scores:
            if candidate.name == score.name and model not in entries:
                entries[model] = candidate
                values.append(candidate.value)

    best = max(values) if score.higher_is_better else min(values)
    cells: list[Text] = []

    for model in models:
        entry = entries.get(model)
        if entry is None:
            cells.append(Text("-"))
            continue

        is_best = len(models) > 1 and entry.value == best
        cells.append(Text(format_score(entry), style="bold" if is_best else ""))

    return cells


# Notes


def notes(results: Sequence[EvaluationResult]) -> list[str]:
    """The protocol of each task in a line, once if it is the same for all models."""
    models_by_line: dict[str, list[str]] = {}
    for result in results:
        remarks = result_remarks(result)
        if remarks:
            line = f"{result.task}: {'; '.join(remarks)}"
            models_by_line.setdefault(line, []).append(result.model)

    all_models = {result.model for result in results}
    lines: list[str] = []

    for line, models in models_by_line.items():
        if set(models) != all_models:
            line = f"{line} ({', '.join(models)})"

        lines.append(line)

    return lines


def result_remarks(result: EvaluationResult) -> list[str]:
    """The notes of a result, its random baseline, and a remark on missing intervals."""
    remarks = list(result.notes)
    if result.random_baseline is not None:
        remarks.append(f"random baseline: {100 * result.random_baseline:.1f}%")
    if any(score.low is None for score in result.scores):
        remarks.append(f"[-]: fewer than {LEAST} units, too few for a confidence interval")

    return remarks


# JSON


def result_json(result: EvaluationResult) -> dict[str, Any]:
    """A result under the keys of the file format, some of which differ from the fields."""
    values = asdict(result)
    values["said"] = values.pop("notes")
    values["chance"] = values.pop("random_baseline")

    return values


def software_versions() -> dict[str, Any]:
    """The versions of the software, and the date."""
    versions = {"qkv": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"versions": versions, "date": datetime.now(UTC).isoformat(timespec="seconds")}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically; infinite numbers, which JSON does not have, become null."""
    text = json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False)
    storage.write_text(path, text + "\n")


def finite(value: Any) -> Any:
    """A JSON value with None in place of infinite numbers and NaN."""
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(finite, value))
    if isinstance(value, float) and not math.isfinite(value):
        return None

    return value
