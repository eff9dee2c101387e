"""What an experiment found: a table of numbers by arm, seed and x, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from qkv.lab.experiment import Experiment, Measured, Size
from qkv.lab.paired_intervals import (
    Finding,
    Interval,
    VerdictWord,
    judge,
    mean_interval,
    overall,
)
from qkv.tables import Table


class Row(NamedTuple):
    """One number that was measured."""

    arm: str
    unit: int
    """The seed; or the number of the sentence, word ..."""
    measure: str
    x: Any
    """None if the measure has no x."""
    y: float


@dataclass(frozen=True)
class Results:
    """The numbers of an experiment; prints as a table.

    Args:
        experiment: The experiment.
        size: Its settings.
        measured: What each arm gave with each seed.
        facts: Where and when it was measured.

    Example:
        >>> from qkv.lab import run
        >>> results = run("lookup", seeds=3, steps=5, out=None)
        >>> results.verdict
        'does not hold'
        >>> results.rows[0].arm
        'exact'
    """

    experiment: Experiment
    size: Size
    measured: Mapping[tuple[str, int], Measured]
    facts: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[Row]:
        """All numbers in long form, which a data frame takes as it is."""
        return list(expand(self.measured))

    @cached_property
    def index(self) -> dict[tuple[str, str, Any], dict[int, float]]:
        """Numbers by unit, for each arm, measure and x."""
        numbers: dict[tuple[str, str, Any], dict[int, float]] = {}
        for row in self.rows:
            numbers.setdefault((row.arm, row.measure, row.x), {})[row.unit] = row.y

        return numbers

    @property
    def units(self) -> list[int]:
        """The seeds, or the numbers of sentences, that every arm has."""
        shared: set[int] | None = None
        for by_unit in self.index.values():
            shared = set(by_unit) if shared is None else shared & set(by_unit)

        return sorted(shared or ())

    def values(self, arm: str, measure: str, x: Any = None) -> list[float]:
        """The numbers of all units, in order."""
        by_unit = self.index[arm, measure, x]
        return [by_unit[unit] for unit in sorted(by_unit)]

    def interval(self, arm: str, measure: str, x: Any = None) -> Interval:
        """Their mean with its 95% interval."""
        return mean_interval(self.values(arm, measure, x))

    def xs(self, measure: str, arm: str | None = None) -> list[Any]:
        """The values of x of a measure, in the order in which they were measured."""
        found: dict[Any, None] = {}
        for name, other, x in self.index:
            if other == measure and arm in (None, name):
                found[x] = None

        return list(found)

    def arms(self, measure: str) -> list[str]:
        """The arms that have the measure."""
        return [arm for arm in self.experiment.arms if self.xs(measure, arm)]

    @cached_property
    def findings(self) -> list[Finding]:
        """The verdict on each part of the claim."""
        found = []
        for check in self.experiment.checks:
            effects = [check.effect(self.reader(unit)) for unit in self.units]
            if effects:
                found.append(judge(check, effects))

        return found

    def reader(self, unit: int) -> Any:
        """The function `value(arm, measure, x=None)` of one unit."""

        def value(arm: str, measure: str, x: Any = None) -> float:
            try:
                return self.index[arm, measure, x][unit]
            except KeyError:
                raise ValueError(f"{self.experiment.name}: no {measure} of {arm} at {x}") from None

        return value

    @property
    def verdict(self) -> VerdictWord:
        """holds, does not hold, or cannot be told at this size."""
        return overall(self.findings)

    def table(self) -> Table:
        """Means with intervals: a row for each measure and x, a column for each arm."""
        table = Table(header_style="bold", caption_justify="left")
        table.caption = f"Means with 95% intervals over {len(self.units)} {self.experiment.unit}s."
        table.add_column("measure")
        table.add_column("x", justify="right")
        for arm in self.experiment.arms:
            table.add_column(arm, justify="right")

        for measure, x, cells in self.cells():
            table.add_row(measure, "" if x is None else str(x), *cells)

        return table

    def cells(self) -> Iterator[tuple[str, Any, list[str]]]:
        """Measure, x and one text for each arm."""
        measures = dict.fromkeys(row.measure for row in self.rows)
        for measure in measures:
            for x in self.xs(measure):
                texts = []
                for arm in self.experiment.arms:
                    known = (arm, measure, x) in self.index
                    texts.append(interval_text(self.interval(arm, measure, x)) if known else "")

                yield measure, x, texts

    def __rich__(self) -> Table:
        return self.table()

    def _repr_html_(self) -> str:
        rows = []
        for measure, x, texts in self.cells():
            cells = "".join(f"<td>{text}</td>" for text in texts)
            rows.append(f"<tr><td>{measure}</td><td>{'' if x is None else x}</td>{cells}</tr>")

        heads = "".join(f"<th>{arm}</th>" for arm in self.experiment.arms)
        head = f"<tr><th>measure</th><th>x</th>{heads}</tr>"
        return f"<table>{head}{''.join(rows)}</table><p>{self.verdict}</p>"


def expand(measured: Mapping[tuple[str, int], Measured]) -> Iterator[Row]:
    """One row for each number."""
    for (arm, seed), measures in measured.items():
        for measure, by_x in measures.items():
            pairs = by_x.items() if isinstance(by_x, Mapping) else [(None, by_x)]
            for x, y in pairs:
                if isinstance(y, Sequence):
                    for unit, number in enumerate(y):
                        yield Row(arm, unit, measure, x, float(number))
                else:
                    yield Row(arm, seed, measure, x, float(y))


def interval_text(interval: Interval) -> str:
    """1.23 ±0.04; without the interval where there is none."""
    half = interval.high - interval.mean
    if interval.units == 1:
        return f"{interval.mean:.4g}"

    return f"{interval.mean:.4g} ±{half:.2g}"
