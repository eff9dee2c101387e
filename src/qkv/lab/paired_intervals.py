"""The statistics of the lab: intervals of paired effects, and the verdict that rests on them.

Arms with the same seed share their data and their start, so an effect is computed within a seed;
its interval is Student's, over the seeds. If there is no effect, the interval lies wholly above 0
in 2.5% of all experiments: that is the rate of a wrong "holds" for one check, and the upper bound
for several, since all of them have to hold.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from qkv.lab.experiment import Check

VerdictWord = Literal["holds", "does not hold", "cannot be told"]
CONFIDENCE = 0.95
FEWEST = 3
"""Units below which no verdict is given."""


class Interval(NamedTuple):
    """A mean with the ends of its 95% interval; with one number the ends are infinite."""

    mean: float
    low: float
    high: float
    units: int


class Finding(NamedTuple):
    """A check with the effect that was found."""

    says: str
    verdict: VerdictWord
    effect: Interval
    relevant: float
    expects: str
    exact: bool
    test: str
    """What the verdict rests on, as a sentence."""


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent numbers with Student's interval.

    Args:
        values: The numbers, one for each unit.

    Returns:
        The mean, and the ends of its 95% interval.

    Raises:
        ValueError: If there is no number.

    Example:
        >>> from qkv.lab import mean_interval
        >>> mean, low, high, units = mean_interval([1.0, 2.0, 3.0])
        >>> f"{mean:.2f} [{low:.2f}, {high:.2f}]"
        '2.00 [-0.48, 4.48]'
    """
    if not values:
        raise ValueError("values: expected at least one number")

    mean = statistics.fmean(values)
    if not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf, len(values))
    if len(values) == 1:
        return Interval(mean, -math.inf, math.inf, 1)

    error = statistics.stdev(values) / math.sqrt(len(values))
    half = t_quantile(len(values) - 1) * error
    return Interval(mean, mean - half, mean + half, len(values))


def judge(check: Check, effects: Sequence[float]) -> Finding:
    """The verdict on one check from the effects of its units."""
    effect = mean_interval(effects)
    if check.exact:
        effect = Interval(effect.mean, min(effects), max(effects), len(effects))

    finding = Finding(
        check.says, "cannot be told", effect, check.relevant, check.expects, check.exact, ""
    )
    if effect.units < FEWEST and not check.exact:
        test = f"Measured {effect.units} times; a verdict needs {FEWEST} or more."
        if effect.units == 1:
            test = f"Measured once; a verdict needs {FEWEST} repetitions or more."

        return finding._replace(test=test)

    if check.expects == "same":
        verdict = judge_same(effect, check.relevant)
    elif check.expects == "not worse":
        verdict = judge_not_worse(effect, check.relevant)
    else:
        verdict = judge_more(effect, check.relevant)

    return finding._replace(verdict=verdict, test=describe(check, effect))


def judge_more(effect: Interval, relevant: float) -> VerdictWord:
    """Is the effect positive, and large enough to matter?"""
    if effect.high < relevant:
        return "does not hold"
    if effect.low > 0:
        return "holds"

    return "cannot be told"


def judge_same(effect: Interval, relevant: float) -> VerdictWord:
    """Is the effect too small to matter, in either direction?"""
    if effect.low > -relevant and effect.high < relevant:
        return "holds"
    if effect.low > relevant or effect.high < -relevant:
        return "does not hold"

    return "cannot be told"


def judge_not_worse(effect: Interval, relevant: float) -> VerdictWord:
    """Is it worse by less than matters? How much better it is does not count."""
    if effect.high < relevant:
        return "holds"
    if effect.low > relevant:
        return "does not hold"

    return "cannot be told"


def describe(check: Check, effect: Interval) -> str:
    """The sentence about the test."""
    region = f"an interval above 0 that reaches {check.relevant:g} (the smallest that matters)"
    if check.expects == "same":
        region = (
            f"an interval between -{check.relevant:g} and {check.relevant:g} (too small to matter)"
        )
    if check.expects == "not worse":
        region = f"an interval below {check.relevant:g} (worse by less than matters)"

    if check.exact:
        region = region.replace("interval", "effect", 1)
        return f"An exact count: {number_text(effect.mean)}; the claim needs {region}."

    low = number_text(effect.low, 3)
    high = number_text(effect.high, 3)
    return (
        f"Mean effect {number_text(effect.mean, 3)}, 95% interval [{low}, {high}] "
        f"(Student's t, paired, n = {effect.units}); the claim needs {region}."
    )


def overall(findings: Sequence[Finding]) -> VerdictWord:
    """A claim holds if all parts hold, and does not if one does not."""
    verdicts = {finding.verdict for finding in findings}
    if "does not hold" in verdicts:
        return "does not hold"
    if "cannot be told" in verdicts or not verdicts:
        return "cannot be told"

    return "holds"


# Numbers as text


def number_text(value: float, digits: int = 4) -> str:
    """A number with so many significant digits: 1,234 and 0.012, with an exponent if need be."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"

    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 7:
        return f"{value:.{digits - 1}e}"

    decimals = max(0, digits - 1 - size)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def interval_text(interval: Interval) -> str:
    """A mean with half the width of its interval, to two digits of the latter: 1.23 ±0.04."""
    mean, _, high, _ = interval
    half = high - mean
    if half == 0 or not math.isfinite(half):
        return number_text(mean)

    size = math.floor(math.log10(half))
    if size < -4 or abs(mean) >= 1e7:
        return f"{mean:.4g} ±{half:.2g}"

    decimals = max(0, 1 - size)
    return f"{mean:,.{decimals}f} ±{half:,.{decimals}f}"


def range_text(interval: Interval) -> str:
    """A mean with the ends of its interval: 1.2 [0.9, 1.5]."""
    mean, low, high, _ = interval
    text = number_text(mean, 3)
    if low == high or not (math.isfinite(low) and math.isfinite(high)):
        return text

    return f"{text} [{number_text(low, 3)}, {number_text(high, 3)}]"


# Student's t distribution


def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The factor of a two-sided interval: by bisection of the distribution function."""
    low = 0.0
    high = 1e4
    for _ in range(100):
        middle = (low + high) / 2
        if t_inside(middle, degrees) < confidence:
            low = middle
        else:
            high = middle

    return (low + high) / 2


def t_inside(t: float, degrees: int) -> float:
    """The probability of |T| < t: a finite sum in closed form (Abramowitz and Stegun, 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    if degrees % 2:
        term = cosine
        total = 0.0
        for k in range(3, degrees + 2, 2):
            total += term
            term *= cosine**2 * (k - 1) / k

        return 2 / math.pi * (angle + math.sin(angle) * total)

    term = 1.0
    total = 0.0
    for k in range(2, degrees + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k

    return math.sin(angle) * total
