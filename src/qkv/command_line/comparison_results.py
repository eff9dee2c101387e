"""Results of `qkv compare` in results.json: each measurement is saved as soon as it is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from qkv.command_line.subjects import data_checksums
from qkv.evaluation import report
from qkv.evaluation.intervals import wilson
from qkv.insight.render.figures.comparison_figure import Compared, Way


class Key(NamedTuple):
    """One measurement: prompted or fine-tuned, number of examples, and the seed to choose them."""

    way: Way
    examples: int
    seed: int

    def __str__(self) -> str:
        plural = "" if self.examples == 1 else "s"
        return f"{self.way} with {self.examples:,} example{plural}, seed {self.seed}"


@dataclass
class ComparisonResults:
    """The results so far; each is written to disk as soon as it is known."""

    path: Path
    question: dict[str, Any]
    """The model, task, data and training of this comparison."""
    points: dict[Key, dict[str, Any]]

    @classmethod
    def open(cls, path: Path, question: dict[str, Any]) -> ComparisonResults:
        """Continue the file's comparison if it has the same question, or begin one."""
        if not path.exists():
            return cls(path, question, {})

        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            points = {}
            for point in before["points"]:
                key = Key(**{name: point.pop(name) for name in Key._fields})
                points[key] = point

            old = dict(before["asked"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"out: {path} holds no comparison that can be continued; choose another folder"
            ) from None

        for name, value in json.loads(json.dumps(question)).items():
            if old.get(name) != value:
                raise ValueError(
                    f"out: {path.parent} holds a comparison with another {name}; choose another "
                    "folder"
                )

        return cls(path, question, points)

    def missing(self, keys: Sequence[Key]) -> list[Key]:
        return [key for key in keys if key not in self.points]

    def add(self, key: Key, point: dict[str, Any]) -> None:
        self.points[key] = point
        self.write()

    def write(self) -> None:
        points = [key._asdict() | point for key, point in sorted(self.points.items())]
        compared = []
        for row in self.compared():
            compared.append(row._asdict() | {"mean": row.mean, "spread": row.spread})

        values = {"compared": compared, "points": points, "asked": self.question}
        report.write_json(self.path, values | report.software_versions())

    def compared(self) -> list[Compared]:
        """Each method with each number of examples, over all seeds."""
        by_size: dict[tuple[Way, int], list[dict[str, Any]]] = {}
        for key, point in sorted(self.points.items()):
            by_size.setdefault((key.way, key.examples), []).append(point)

        compared = []
        for (way, examples), points in by_size.items():
            rows = points[0]["rows"]
            accuracies = tuple(point["accuracy"] for point in points)
            correct = min(rows, sum(accuracies) / len(points) * rows)
            compared.append(Compared(way, examples, accuracies, *wilson(correct, rows)))

        return compared


def checksums_of(data: Sequence[str]) -> list[str]:
    """The checksums of the files, independent of their paths; data on a hub by its name."""
    checksums = data_checksums(data).items()
    return [sha or name for name, sha in checksums if sha or name.startswith("hf:")]
