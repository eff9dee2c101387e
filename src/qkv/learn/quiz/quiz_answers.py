"""Answers as students type them: numbers, shapes, options and what code prints."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable

LONGEST = 200
"""Characters of an answer that is read as a number."""
HIGHEST_POWER = 1000
OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "ln": math.log,
    "log": math.log,
    "log2": math.log2,
}
CONSTANTS = {"pi": math.pi, "e": math.e}


def number_of(text: str) -> float:
    """A number as it is typed: 0.25, 1/4, 25%, 1e-3, 1,024, 2^10, 4 * 64, ln(2).

    Args:
        text: The number.

    Returns:
        Its value.

    Raises:
        ValueError: If it is not a number.

    Example:
        >>> number_of("1/8"), number_of("1,024"), number_of("50%")
        (0.125, 1024.0, 0.5)
    """
    formula = text.strip().lower().removesuffix(".")
    for old, new in (("−", "-"), ("×", "*"), ("·", "*"), ("^", "**"), ("_", ""), ("π", "pi")):
        formula = formula.replace(old, new)

    formula = re.sub(r"(?<=\d) (?=\d{3}\b)", "", formula)
    # 1,024 has a separator of thousands; 0,25 a decimal comma
    formula = re.sub(r"(?<![\d.])[1-9]\d{0,2}(?:,\d{3})+(?!\d)", remove_commas, formula)
    formula = re.sub(r"(?<=\d),(?=\d)", ".", formula)
    formula = re.sub(r"(\d)\s*%$", r"\1 / 100", formula)
    try:
        if len(formula) > LONGEST:
            raise ValueError

        value = evaluate(ast.parse(formula, mode="eval").body)
    except (ValueError, LookupError, SyntaxError, ArithmeticError, RecursionError, TypeError):
        value = math.nan

    if not math.isfinite(value):
        raise ValueError(
            f"{text.strip()!r} is not a number; expected one such as 0.25, 1/4 or 2e-3"
        )

    return float(value)


def remove_commas(match: re.Match[str]) -> str:
    return match[0].replace(",", "")


def evaluate(node: ast.expr) -> float:
    """The value of a formula of numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -evaluate(node.operand)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
        return evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left = evaluate(node.left)
        right = evaluate(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > HIGHEST_POWER:
            raise ValueError

        return OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        (argument,) = node.args
        return FUNCTIONS[node.func.id](evaluate(argument))

    raise ValueError


def shape_of(text: str) -> tuple[int, ...]:
    """A shape as it is typed: (2, 3), 2x3, [2, 3], 2 3, torch.Size([2, 3]); () of a scalar.

    Args:
        text: The shape.

    Returns:
        Its sizes.

    Raises:
        ValueError: If it is not a shape.

    Example:
        >>> shape_of("2x3"), shape_of("(2, 3)"), shape_of("()")
        ((2, 3), (2, 3), ())
    """
    bare = text.strip().lower().removeprefix("torch.size").strip("()[] ,")
    if not bare and re.search(r"[(\[]", text):
        return ()

    sizes = re.split(r"\s*[,x×*]\s*|\s+", bare)
    if not all(re.fullmatch(r"\d{1,12}", size, re.ASCII) for size in sizes):
        raise ValueError(f"{text.strip()!r} is not a shape; expected one such as (2, 3) or 2x3")

    return tuple(int(size) for size in sizes)


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as Python writes it."""
    return str(shape)


def option_of(text: str, options: tuple[str, ...]) -> str:
    """The option that is chosen by its number, its letter or its text.

    Raises:
        ValueError: If there is no such option.
    """
    typed = text.strip().strip("().").lower()
    for number, option in enumerate(options):
        if typed in (str(number + 1), chr(ord("a") + number)):
            return option

    for option in options:
        if printed_alike(text, option):
            return option

    example = f"expected a number from 1 to {len(options)}"
    raise ValueError(f"{text.strip()!r} is not an option; {example}")


def printed_alike(typed: str, output: str) -> bool:
    """Whether an answer is what code prints, apart from spaces, quotes and capitals."""
    if plain(typed) == plain(output):
        return True

    try:
        return math.isclose(number_of(typed), number_of(output), rel_tol=1e-6)
    except ValueError:
        return False


def plain(text: str) -> str:
    """A text without spaces, quotes, capitals and the name tensor."""
    bare = "".join(text.split()).lower().replace('"', "'")
    match = re.fullmatch(r"tensor\((.*)\)", bare)
    if match is not None:
        bare = match[1]

    return bare.strip("'`")
