"""What an experiment consists of: a claim, arms, a measurement, checks and panels of a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Y = float | Sequence[float]
"""A number; or, in an experiment without seeds, one number for each unit (sentence, word ...)."""
Measured = Mapping[str, Y | Mapping[Any, Y]]
"""What one arm gave with one seed: a number by name, or numbers by name and x."""
SizeName = Literal["small", "large"]


class Size(SimpleNamespace):
    """The settings of a size: seeds, minutes, and whatever else the experiment needs.

    Args:
        seeds: How often each arm is measured.
        minutes: Time on two CPU cores (small) or on one GPU (large).
        settings: Steps, widths and the like, read by `measure` as attributes.

    Example:
        >>> from qkv.lab import Size
        >>> size = Size(seeds=5, minutes=0.5, steps=300)
        >>> size.steps, size.settings
        (300, {'steps': 300})
    """

    def __init__(self, *, seeds: int, minutes: float, **settings: object) -> None:
        super().__init__(seeds=seeds, minutes=minutes, **settings)

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the outcome of a measurement: everything but seeds and minutes."""
        settings = dict(vars(self))
        del settings["seeds"], settings["minutes"]
        return settings


@dataclass(frozen=True)
class Cell:
    """One measurement: an arm with a seed. Arms with the same seed read the same data.

    Args:
        arm: What is measured.
        seed: The seed of data and weights; torch's generator has it already.
        size: The settings.
        device: Where to measure.

    Example:
        >>> import torch
        >>> from qkv.lab import Cell, Size
        >>> cell = Cell("softmax", 0, Size(seeds=5, minutes=0.5, steps=300), torch.device("cpu"))
        >>> cell.size.steps
        300
    """

    arm: str
    seed: int
    size: Size
    device: torch.device


@dataclass(frozen=True)
class Check:
    """One testable part of a claim: an effect in each seed, and what the claim says about it.

    With `more`, the claim is that the effect is above 0. It holds if the 95% interval of the mean
    effect lies above 0 and reaches `relevant`. It does not hold if the interval lies below
    `relevant`: the effect is absent, reversed or too small to matter. With `same`, the claim is
    that there is no relevant effect. It holds if the interval lies between -relevant and +relevant,
    and does not hold if it lies outside. With `not worse`, the effect is by how much something is
    worse, and the claim is that it is less than `relevant`. It holds if the interval lies below
    `relevant`, and does not hold if it lies above; being better never counts against it.

    Args:
        says: The claim as a sentence.
        effect: A function that computes the effect of one unit. It is called with a function
            `value(arm, measure, x)` that returns what was measured in this unit (x if it has one).
        relevant: The smallest effect that matters, a positive number in the unit of the effect.
        expects: "more" if the claim is a positive effect, "same" if it is none, "not worse" if it
            is none or a negative one.
        exact: True for counts that are the same in every run: one measurement is enough.

    Example:
        >>> from qkv.lab import Check
        >>> def effect(value):
        ...     return value("soft", "accuracy") - value("hard", "accuracy")
        >>> check = Check("Soft is better than hard", effect, relevant=0.02)
        >>> check.expects
        'more'
    """

    says: str
    effect: Callable[[Callable[..., float]], float]
    relevant: float
    expects: Literal["more", "same", "not worse"] = "more"
    exact: bool = False


@dataclass(frozen=True)
class Panel:
    """One part of a figure.

    Args:
        measure: The name of what is drawn, as `measure` returns it.
        x: Label of the x axis; empty if there is no x: then each arm is a column of dots.
        y: Label of the y axis.
        title: What is seen, above the panel.
        kind: "lines" over a numeric x; "dots" for categories; "heat" for a matrix with x as
            columns and arms as rows.
        log: The axes with a logarithmic scale: "", "x", "y" or "xy".
        arms: The arms to show (default: all that have the measure).
        levels: Horizontal lines with a name: chance, the entropy of the data ...
        draw: A function that draws the panel instead, with matplotlib: it gets the axes and the
            `Results`.

    Example:
        >>> from qkv.lab import Panel
        >>> panel = Panel("loss", "step", "nats per token", log="x", levels={"entropy": 1.2})
        >>> panel.kind
        'lines'
    """

    measure: str
    x: str = ""
    y: str = ""
    title: str = ""
    kind: Literal["lines", "dots", "heat"] = "lines"
    log: Literal["", "x", "y", "xy"] = ""
    arms: tuple[str, ...] = ()
    levels: Mapping[str, float] | None = None
    draw: Callable[[Axes, Any], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A claim of the lectures as an experiment.

    Args:
        name: The name on the command line.
        claim: The claim in one sentence.
        slides: Where the lectures make it, as "002 L58".
        setup: How it is tested: about five short lines.
        arms: What is compared; each is measured with every seed.
        measure: The measurement of one arm with one seed.
        checks: The parts of the claim; it holds if all of them hold.
        panels: The figure.
        small: Settings for two CPU cores and at most five minutes.
        large: Settings for one GPU and at most ten minutes.
        unit: What is repeated: "seed"; or, if measurements are lists, "sentence", "word" ...
        timed: True if time is measured: then nothing else runs beside it.
        remark: What is true where the lecture is imprecise, and how to read the result.
        next_steps: What to try next: commands or questions.

    Example:
        >>> from qkv.lab import find
        >>> lookup = find("lookup")
        >>> lookup.unit, lookup.size("small", 9).seeds
        ('seed', 9)
    """

    name: str
    claim: str
    slides: tuple[str, ...]
    setup: tuple[str, ...]
    arms: tuple[str, ...]
    measure: Callable[[Cell], Measured]
    checks: tuple[Check, ...]
    panels: tuple[Panel, ...]
    small: Size
    large: Size
    unit: str = "seed"
    timed: bool = False
    remark: str = ""
    next_steps: tuple[str, ...] = ()

    def size(self, name: SizeName, seeds: int | None = None, **settings: Any) -> Size:
        """The settings of a size, some of them replaced.

        Raises:
            ValueError: If the experiment has no such setting.
        """
        size = {"small": self.small, "large": self.large}[name]
        if seeds is not None:
            settings["seeds"] = seeds

        known = vars(size)
        for key, value in settings.items():
            if key not in known:
                raise ValueError(
                    f"{key}: {self.name} has no such setting; it has {', '.join(known)}"
                )

            check_setting(key, value, known[key])

        return Size(**{**known, **settings})


def check_setting(key: str, value: Any, default: Any) -> None:
    """Raise unless a value has the type of the default; an integer may stand for a float.

    A count, such as steps, is 1 or more.
    """
    expected: tuple[type, ...] = (type(default),)
    if isinstance(default, float):
        expected = (float, int)

    if default is not None and type(value) not in expected:
        raise ValueError(
            f"{key}: expected {expected[0].__name__}, such as {default!r}, not {value!r}"
        )
    if type(default) is int and value < 1 <= default:
        raise ValueError(f"{key}: expected 1 or more, not {value}")
