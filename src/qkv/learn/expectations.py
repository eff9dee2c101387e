"""What checks say of a student's code: equalities and properties, with the mistake named.

A check is a function with the decorator `check`, which names the part it is about and what must
hold. It gets the student's module and an `InputDraw` of random inputs, small ones first, so that
the first failure is the smallest example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., None])
SIZES = (1, 2, 3, 5)
"""The sizes of drawn inputs, smallest first."""
MOST_CELLS = 8
"""Rows and columns of a table that is drawn."""
PLAIN = (Tensor, torch.nn.Parameter)
"""The classes that a result may have."""


@dataclass(frozen=True)
class FailingExample:
    """The smallest failing example, as a table."""

    title: str
    rows: tuple[tuple[str, ...], ...]
    """Cells, row by row; the first cell of a row is its name."""
    header: tuple[str, ...] = ()


class Failed(Exception):
    """A check failed; the message says why in words of the subject."""

    def __init__(self, message: str, *examples: FailingExample) -> None:
        super().__init__(message)
        self.message = message
        self.examples = examples


class CheckTitle(NamedTuple):
    """What a check is about."""

    part: str
    title: str


def check(part: str, title: str) -> Callable[[F], F]:
    """Mark a function as a check of a part; the title says what must hold."""

    def mark(function: F) -> F:
        function.__dict__["check"] = CheckTitle(part, title)
        return function

    return mark


class InputDraw:
    """Random inputs of a size, always the same for a seed.

    Args:
        size: A number that the inputs grow with, from 1.
        seed: Seed of the generator.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.generator = torch.Generator().manual_seed(1000 * seed + size)

    def normal(self, *shape: int) -> Tensor:
        """Normally distributed numbers."""
        return torch.randn(shape, generator=self.generator)

    def integers(self, high: int, *shape: int, low: int = 0) -> Tensor:
        """Integers from low to high - 1."""
        return torch.randint(low, high, shape, generator=self.generator)

    def permutation(self, length: int) -> Tensor:
        """The numbers 0 to length - 1 in random order."""
        return torch.randperm(length, generator=self.generator)


Mistakes = Mapping[str, Tensor | Callable[[], Tensor]]
"""What the student is told if the result equals that of a known mistake."""
LaterMistakes = Callable[[], Mistakes]
"""The same, computed only for a result that is wrong."""


def expect_equal(
    found: Any,
    expected: Tensor,
    what: str,
    mistakes: Mistakes | LaterMistakes | None = None,
    *,
    shape: str = "",
    inputs: Mapping[str, Tensor] | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Fail unless a result equals what is expected; a known mistake is named.

    Args:
        found: The student's result.
        expected: The right one.
        what: What it is, such as "the weights".
        mistakes: Results of known mistakes, by what to tell the student; or a function that
            computes them, which is called if the result is wrong.
        shape: The shape in letters, such as "(T, S)".
        inputs: Small tensors that are drawn with the example.
        tolerance: Allowed difference, absolute and relative.
    """
    expect_shape(found, tuple(expected.shape), what, shape)
    if is_close(found, expected, tolerance):
        return

    examples = [table(name, value) for name, value in (inputs or {}).items()]
    examples.append(compare(what, found, expected, tolerance))
    known = mistakes() if callable(mistakes) else mistakes
    for message, mistake in (known or {}).items():
        wrong = mistake() if callable(mistake) else mistake
        told_apart = not is_close(wrong, expected, tolerance)
        if told_apart and is_close(found, wrong, tolerance):
            raise Failed(message, *examples)

    if not torch.isfinite(found).all() and torch.isfinite(expected).all():
        raise Failed(f"{what}: some numbers are NaN or infinite", *examples)

    raise Failed(f"{what}: the numbers are not the expected ones", *examples)


def expect_shape(found: Any, expected: tuple[int, ...], what: str, letters: str = "") -> None:
    """Fail unless a result is a tensor of a shape."""
    if found is None:
        raise Failed(f"{what}: the function returns None; is a return statement missing?")
    if not isinstance(found, Tensor):
        raise Failed(f"{what}: expected a tensor, not {type(found).__name__}")
    if type(found) not in PLAIN:  # a class of its own may answer comparisons itself
        raise Failed(f"{what}: expected a plain tensor, not a {type(found).__name__}")
    if tuple(found.shape) != expected:
        named = f"{letters} = {expected}" if letters else str(expected)
        raise Failed(f"{what}: the shape is {tuple(found.shape)}; expected {named}")


def expect_gradients(
    mine: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    inputs: Mapping[str, Tensor],
    what: str,
    tolerance: float = 1e-4,
) -> None:
    """Fail unless both functions have the same gradient with respect to each input.

    Args:
        mine: The student's function of the inputs.
        reference: The right one.
        inputs: Tensors by name.
        what: What the functions compute.
        tolerance: Allowed difference, absolute and relative.
    """
    outputs = []
    gradients = []
    for function in (mine, reference):
        leaves = [value.clone().requires_grad_() for value in inputs.values()]
        output = function(*leaves)
        if not output.requires_grad:
            if function is mine:
                raise Failed(
                    f"{what}: there is no gradient: was it detached, or computed in numpy?"
                )

            return

        outputs.append(output)
        weights = torch.linspace(-1, 1, output.numel()).view(output.shape)
        gradients.append(torch.autograd.grad((output * weights).sum(), leaves, allow_unused=True))

    for name, ours, right in zip(inputs, *gradients, strict=True):
        ours = torch.zeros_like(inputs[name]) if ours is None else ours
        right = torch.zeros_like(inputs[name]) if right is None else right
        if not is_close(ours, right, tolerance):
            message = f"{what}: the values are wrong, and so is the gradient of {name}"
            if is_close(outputs[0], outputs[1], tolerance):
                message = f"{what}: the values are right, but the gradient of {name} is not"

            raise Failed(
                message,
                compare(f"gradient of {name}", ours, right, tolerance),
            )


def is_close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether two tensors have the same shape and numbers."""
    if type(found) not in PLAIN or found.shape != expected.shape:
        return False

    found = found.detach().to(torch.float64)
    return torch.allclose(
        found, expected.detach().to(torch.float64), tolerance, tolerance, equal_nan=True
    )


# Tables


def table(title: str, values: Tensor, names: Sequence[str] = ()) -> FailingExample:
    """A small tensor as a table; of a large one the beginning."""
    shown = matrix(values)
    rows = []
    for number, row in enumerate(shown):
        name = names[number] if names else str(number)
        rows.append((name, *(number_text(value) for value in row)))

    part = ", in part" if shown.numel() < values.numel() else ""
    return FailingExample(f"{title} {tuple(values.shape)}{part}", tuple(rows))


def compare(what: str, found: Tensor, expected: Tensor, tolerance: float) -> FailingExample:
    """Both tensors in one table; cells that differ show both numbers.

    Of more than two dimensions, the first matrix that differs is shown.
    """
    title = f"{what} {tuple(found.shape)}"
    index = []
    while found.dim() > 2:
        differ = [not is_close(*pair, tolerance) for pair in zip(found, expected, strict=True)]
        index.append(differ.index(True) if True in differ else 0)
        found, expected = found[index[-1]], expected[index[-1]]

    if any(index):
        title += f", of which {index}"

    rows = []
    for number, (mine, right) in enumerate(zip(matrix(found), matrix(expected), strict=True)):
        cells = [str(number)]
        for value, wanted in zip(mine, right, strict=True):
            if is_close(value, wanted, tolerance):
                cells.append(number_text(value))
            else:
                cells.append(f"{number_text(value)}, not {number_text(wanted)}")

        rows.append(tuple(cells))

    return FailingExample(title, tuple(rows))


def matrix(values: Tensor) -> Tensor:
    """The beginning of a tensor as rows and columns: of more dimensions, the first of each."""
    values = values.detach()
    while values.dim() > 2:
        values = values[0]

    return values.reshape(-1, values.shape[-1] if values.dim() else 1)[:MOST_CELLS, :MOST_CELLS]


def number_text(value: Tensor) -> str:
    number = value.item()
    return f"{number:.3g}" if isinstance(number, float) else str(number)


# Calls and results of functions


def call_with(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """Call a student's function; fail if it changes an input, name the shapes if it raises.

    Args:
        function: The student's function.
        inputs: Its arguments in their order, by name.

    Returns:
        What the function returns.
    """
    copies = {name: copied(value) for name, value in inputs.items()}
    try:
        result = function(*copies.values())
    except (RuntimeError, IndexError) as error:
        if isinstance(error, NotImplementedError):
            raise

        shapes = []
        for name, value in inputs.items():
            if isinstance(value, Tensor):
                shapes.append(f"{name} {tuple(value.shape)}")

        message = f"{error}; the inputs are {', '.join(shapes)}"
        raise type(error)(message).with_traceback(error.__traceback__) from None

    for name, value in inputs.items():
        if isinstance(value, Tensor) and not torch.equal(value, copies[name]):
            raise Failed(
                f"{function.__name__} changes {name} in place: compute a new tensor instead",
                compare(f"{name} after the call", copies[name], value, 0),
            )

    return result


def copied(value: Any) -> Any:
    """A copy of a tensor; anything else as it is."""
    return value.clone() if isinstance(value, Tensor) else value


def expect_pair(found: Any, what: str, first: str, second: str) -> tuple[Any, Any]:
    """Fail unless a function returned two results, such as output and weights."""
    if found is None:
        raise Failed(f"{what}: the function returns None; is a return statement missing?")
    if not isinstance(found, tuple) or len(found) != 2:
        raise Failed(
            f"{what} returns one {type(found).__name__}; expected a pair of tensors: "
            f"return {first}, {second}"
        )

    return found


def expect_dtype(found: Any, dtype: torch.dtype, what: str) -> None:
    """Fail unless a result is a tensor of a dtype."""
    expect_shape(found, tuple(getattr(found, "shape", ())), what)
    if found.dtype != dtype:
        right = str(dtype).removeprefix("torch.")
        mine = str(found.dtype).removeprefix("torch.")
        raise Failed(f"{what}: the dtype is {mine}; expected {right}")


def expect_double(
    mine: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    inputs: Mapping[str, Tensor],
    what: str,
) -> None:
    """Fail unless inputs of float64 give the same results in float64."""
    doubles = {name: value.double() for name, value in inputs.items()}
    found = call_with(mine, doubles)
    expect_dtype(found, torch.float64, f"{what}, of inputs in float64")
    expect_equal(found, reference(*doubles.values()), f"{what} in float64", tolerance=1e-6)


# In-place changes


@contextmanager
def expect_untouched(what: str, **inputs: Tensor) -> Iterator[None]:
    """Fail if the code inside changes one of the inputs in place."""
    before = {name: value.clone() for name, value in inputs.items()}
    yield
    for name, value in inputs.items():
        if not torch.equal(value, before[name]):
            raise Failed(
                f"{what} changes its input {name} in place, such as += does; the caller still "
                f"needs it: {name} = {name} + ... makes a new tensor",
                compare(name, value, before[name], 0.0),
            )
