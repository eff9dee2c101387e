"""result.json of an experiment, written with the page and the figures, and read for the book."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from qkv import storage
from qkv.lab.lab_results import Results
from qkv.lab.report.lab_page import PAGE, write_page

RESULT = "result.json"


def write_results(results: Results, folder: Path) -> Path:
    """Write the page, the figures and result.json; return the page's path."""
    page = write_page(results, folder)
    text = json.dumps(as_json(results), indent=1, allow_nan=False, ensure_ascii=False)
    storage.write_text(folder / RESULT, text + "\n")
    return page


def read_result(folder: Path) -> dict[str, Any] | None:
    """What result.json holds; None if there is none, or if it is damaged."""
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None

    if not isinstance(result, dict) or "verdict" not in result:
        return None

    return result


def is_written(results: Results, folder: Path) -> bool:
    """Whether the page and result.json of these results are there."""
    return (folder / PAGE).is_file() and read_result(folder) == as_json(results)


def as_json(results: Results) -> dict[str, Any]:
    """Everything that the page shows, as JSON has it: without NaN, infinity and tuples."""
    experiment = results.experiment
    measured = []
    for row in results.rows:
        measured.append([row.arm, row.unit, row.measure, row.x, row.y])

    means = []
    for (arm, measure, x), by_unit in results.index.items():
        mean, low, high, units = results.interval(arm, measure, x)
        means.append([arm, measure, x, mean, low, high, units])
        assert len(by_unit) == units

    findings = []
    for finding in results.findings:
        findings.append(finding._asdict() | {"effect": finding.effect._asdict()})

    content = {
        "name": experiment.name,
        "claim": experiment.claim,
        "slides": experiment.slides,
        "verdict": results.verdict,
        "findings": findings,
        **results.facts,
        "settings": results.size.settings,
        "unit": experiment.unit,
        "columns of means": ["arm", "measure", "x", "mean", "low", "high", "units"],
        "means": means,
        "columns of measured": ["arm", experiment.unit, "measure", "x", "y"],
        "measured": measured,
    }
    cleaned: dict[str, Any] = clean(content)
    return cleaned


def clean(value: Any) -> Any:
    """The value as JSON gives it back; numbers that JSON does not have become null."""
    if isinstance(value, dict):
        return {str(key): clean(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [clean(content) for content in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value

    return str(value)
