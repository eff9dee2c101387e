"""What an experiment found: a table of numbers by arm, seed and x, and the verdict."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from qkv.lab.experiment import Check, Experiment, Measured, Size
from qkv.lab.paired_intervals import (
    Finding,
    Interval,
    VerdictWord,
    interval_text,
    judge,
    mean_interval,
    overall,
)
from qkv.tables import Table

SHOWN = 10
"""Values of x of a measure that a printed table shows."""


class MissingNumber(ValueError):
    """A check asks for a number that was not measured."""


class MeasuredRow(NamedTuple):
    """One number that was measured."""

    arm: str
    unit: int
    """The seed; or the number of the sentence, word ..."""
    measure: str
    x: Any
    """None if the measure has no x."""
    y: float


@dataclass(frozen=True, repr=False)
class Results:
    """The numbers of an experiment; prints as a table, also in a notebook.

    Args:
        experiment: The experiment.
        size: Its settings.
        measured: What each arm gave with each seed.
        facts: Where and when it was measured.

    Example:
        >>> from qkv.lab import run
        >>> results = run("lookup", seeds=3, steps=5, workers=1, out=None)
        >>> results.units
        [200, 201, 202]
        >>> results.rows[0]._fields
        ('arm', 'unit', 'measure', 'x', 'y')
    """

    experiment: Experiment
    size: Size
    measured: Mapping[tuple[str, int], Measured]
    facts: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[MeasuredRow]:
        """All numbers in long form, which a data frame takes as it is."""
        return list(expand(self.measured))

    @cached_property
    def index(self) -> dict[tuple[str, str, Any], dict[int, float]]:
        """Numbers by unit, for each arm, measure and x; a sentence's is its mean over seeds."""
        found: dict[tuple[str, str, Any], dict[int, list[float]]] = {}
        for row in self.rows:
            by_unit = found.setdefault((row.arm, row.measure, row.x), {})
            by_unit.setdefault(row.unit, []).append(row.y)

        numbers = {}
        for key, lists in found.items():
            numbers[key] = {unit: statistics.fmean(values) for unit, values in lists.items()}

        return numbers

    @cached_property
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
        return [judge(check, self.effects(check)) for check in self.experiment.checks]

    def effects(self, check: Check) -> list[float]:
        """The effect in each unit that has all numbers the check needs.

        Raises:
            ValueError: If no unit has them.
        """
        found = []
        missing: MissingNumber | None = None
        for unit in sorted({row.unit for row in self.rows}):
            try:
                found.append(check.effect(self.reader(unit)))
            except MissingNumber as error:
                missing = error

        if not found and missing is not None:
            raise missing

        return found

    def reader(self, unit: int) -> Any:
        """The function `value(arm, measure, x=None)` of one unit."""

        def value(arm: str, measure: str, x: Any = None) -> float:
            try:
                return self.index[arm, measure, x][unit]
            except KeyError:
                name = self.experiment.name
                raise MissingNumber(f"{name}: no {measure} of {arm} at {x}") from None

        return value

    @property
    def changed(self) -> dict[str, Any]:
        """Settings that differ from those of the experiment's size."""
        usual = self.experiment.size(self.facts.get("size", "small")).settings
        return {key: value for key, value in self.size.settings.items() if usual.get(key) != value}

    @property
    def verdict(self) -> VerdictWord:
        """holds, does not hold, or cannot be told at this size."""
        return overall(self.findings)

    def table(self, most: int | None = None) -> Table:
        """Means with intervals: a row for each measure and x, a column for each arm.

        Args:
            most: Values of x to show for each measure, evenly spread (default: all).
        """
        table = Table(header_style="bold", caption_justify="left")
        table.caption = self.caption
        if any(len(self.xs(row.measure)) > (most or math.inf) for row in self.rows):
            table.caption += " Some x are left out; the page and result.json have all."

        for head in self.heads():
            table.add_column(escape(head), justify="left" if head == "measure" else "right")

        for cells in self.lines(most):
            table.add_row(*map(escape, cells))

        return table

    @property
    def caption(self) -> str:
        """What the numbers of the table are."""
        unit = self.experiment.unit
        count = len(self.units)
        if count == 1:
            return f"One {unit}, so without intervals."

        return f"Means with 95% intervals over {count} {unit}s."

    def heads(self) -> list[str]:
        """The columns of the table; x only if a measure has one."""
        has_x = any(row.x is not None for row in self.rows)
        return ["measure", *(["x"] if has_x else []), *self.experiment.arms]

    def lines(self, most: int | None = None) -> Iterator[list[str]]:
        """The rows of the table: measure, x (if there is one), and one text for each arm."""
        has_x = "x" in self.heads()
        for measure in dict.fromkeys(row.measure for row in self.rows):
            for x in spread(self.xs(measure), most):
                cells = [measure]
                if has_x:
                    cells.append(x_text(x))

                for arm in self.experiment.arms:
                    known = (arm, measure, x) in self.index
                    cells.append(interval_text(self.interval(arm, measure, x)) if known else "")

                yield cells

    def __rich__(self) -> Table:
        return self.table(SHOWN)

    def __repr__(self) -> str:
        console = Console(width=100, highlight=False)
        with console.capture() as capture:
            console.print(self)

        return f"{capture.get()}{self.verdict}: {self.experiment.claim}"

    def _repr_html_(self) -> str:
        def row(tag: str, texts: Sequence[str]) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)

        body = "".join(row("td", cells) for cells in self.lines())
        claim = f"<b>{self.verdict}</b>: {html.escape(self.experiment.claim)}"
        table = f"<table>{row('th', self.heads())}{body}</table>"
        return f"{table}<p>{self.caption}</p><p>{claim}</p>"


def expand(measured: Mapping[tuple[str, int], Measured]) -> Iterator[MeasuredRow]:
    """One row for each number, in the order of the measurements."""
    for (arm, seed), measures in measured.items():
        for measure, by_x in measures.items():
            pairs = by_x.items() if isinstance(by_x, Mapping) else [(None, by_x)]
            for x, y in pairs:
                if isinstance(y, Sequence):
                    for unit, number in enumerate(y):
                        yield MeasuredRow(arm, unit, measure, x, float(number))
                else:
                    yield MeasuredRow(arm, seed, measure, x, float(y))


def spread(xs: Sequence[Any], most: int | None) -> Sequence[Any]:
    """At most so many of the values, evenly spread from the first to the last."""
    if most is None or len(xs) <= most:
        return xs

    step = (len(xs) - 1) / (most - 1)
    return [xs[round(number * step)] for number in range(most)]


def x_text(x: Any) -> str:
    """An x as text: 0.5, 2e+10, a word; nothing if there is none."""
    if x is None:
        return ""

    return f"{x:g}" if isinstance(x, float) else str(x)
