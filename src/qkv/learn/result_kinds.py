"""Results that are no tensors: numbers, lists of ids, several results at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from qkv.learn.expectations import Failed, FailingExample, table


def expect_number(
    found: Any,
    expected: float,
    what: str,
    mistakes: Mapping[str, float] | Callable[[], Mapping[str, float]] | None = None,
    *,
    inputs: Mapping[str, Tensor] | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Fail unless a result is a number close to the expected one; a known mistake is named."""
    value = as_number(found, what)
    if math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance):
        return

    rows = (("yours", f"{value:.6g}"), ("expected", f"{expected:.6g}"))
    examples = [table(name, given) for name, given in (inputs or {}).items()]
    examples.append(FailingExample(what, rows))
    known = mistakes() if callable(mistakes) else mistakes
    for message, wrong in (known or {}).items():
        told_apart = not math.isclose(wrong, expected, rel_tol=tolerance, abs_tol=tolerance)
        if told_apart and math.isclose(value, wrong, rel_tol=tolerance, abs_tol=tolerance):
            raise Failed(message, *examples)

    raise Failed(f"{what} is {value:.6g}; expected {expected:.6g}", *examples)


def as_number(found: Any, what: str) -> float:
    """A result as a float; a tensor may have one number."""
    if found is None:
        raise Failed(f"{what}: the function returns None; is a return statement missing?")
    if isinstance(found, Tensor) and found.numel() == 1:
        return float(found)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise Failed(f"{what}: expected a number, not {kind(found)}")

    return float(found)


def expect_ids(
    found: Any,
    expected: Sequence[int],
    what: str,
    mistakes: Mapping[str, Sequence[int]] | None = None,
    *examples: FailingExample,
) -> None:
    """Fail unless a result is the expected list of token ids; a known mistake is named."""
    if found is None:
        raise Failed(f"{what}: the function returns None; is a return statement missing?")
    if not isinstance(found, list):
        raise Failed(f"{what}: expected a list of token ids, not {kind(found)}")
    if not all(isinstance(id, int) for id in found):
        raise Failed(
            f"{what}: expected a list of whole numbers, but one is {kind(first_other(found))}; "
            "int(...) makes a whole number of it"
        )
    if found == list(expected):
        return

    rows = (("yours", *map(str, found)), ("expected", *map(str, expected)))
    for message, wrong in (mistakes or {}).items():
        if found == list(wrong):
            raise Failed(message, *examples, FailingExample(what, rows))

    raise Failed(
        f"{what}: the tokens are not the expected ones", *examples, FailingExample(what, rows)
    )


def first_other(found: Sequence[Any]) -> Any:
    """The first element that is not a whole number."""
    return next(value for value in found if not isinstance(value, int))


def expect_results(found: Any, names: Sequence[str], what: str = "") -> Any:
    """Fail unless a function returns as many results as there are names."""
    listed = ", ".join(names)
    lead = f"{what}: " if what else ""
    if found is None:
        raise Failed(f"{lead}the function returns None, not {listed}; is a return missing?")
    if not isinstance(found, tuple) or len(found) != len(names):
        raise Failed(f"{lead}expected {len(names)} results, {listed}, not {kind(found)}")

    return found


def kind(value: Any) -> str:
    """What a value is, in words."""
    if isinstance(value, Tensor):
        return f"a tensor of the shape {tuple(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"

    return f"{type(value).__name__} {value!r}"[:60]
