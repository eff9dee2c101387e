"""Config checks: a wrong value of a frozen dataclass is refused by the name of its field."""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints


def check_fields(config: Any) -> None:
    """Raise unless every field has its declared type; a whole number must be 0 or more."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        kinds: tuple[Any, ...] = (hints[field.name],)
        if is_union(hints[field.name]):
            kinds = get_args(hints[field.name])

        if not any(fits(value, kind) for kind in kinds):
            expected = " or ".join(map(describe, kinds))
            raise ValueError(f"{field.name}: expected {expected}, not {value!r}")


def check_at_least_one(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ValueError(f"{name}: expected 1 or more, not {value!r}")


def check_above_zero(config: Any, *names: str) -> None:
    for name in names:
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name}: expected a number above 0, not {getattr(config, name)!r}")


def check_probability(config: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(
                f"{name}: expected a probability from 0 to below 1, not {getattr(config, name)!r}"
            )


def is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:  # of any length
        return isinstance(value, tuple) and all(fits(item, get_args(kind)[0]) for item in value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)

    return isinstance(value, kind)


def describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"several, each {describe(get_args(kind)[0])}"
    if is_dataclass(kind):
        return f"the fields of {getattr(kind, '__name__', kind)}"

    names = {
        int: "a whole number of 0 or more",
        float: "a number",
        bool: "true or false",
        str: "a text",
        NoneType: "nothing",
    }

    return names.get(kind, str(kind))


Class = TypeVar("Class", bound=type[Any])


def documented(config: Class) -> Class:
    """Class decorator: append the fields and their docstrings to the class docstring."""
    config.__doc__ = FieldDocumentation(config)  # type: ignore[assignment]
    return config


class FieldDocumentation:
    """A class docstring that is built when it is first read: parsing takes milliseconds."""

    def __init__(self, config: type[Any]) -> None:
        self.summary = inspect.cleandoc(config.__doc__ or "")
        if self.summary.startswith(f"{config.__name__}("):  # dataclass's default, the signature
            self.summary = ""

        self.text: str | None = None

    def __get__(self, instance: Any, config: type[Any]) -> str:
        if self.text is None:
            summary, example, code = self.summary.partition("\n\nExample:")
            lines = [summary, "", "Attributes:", *map(indented, described(config))]
            self.text = ("\n".join(lines) + example + code).lstrip()

        return self.text


def described(config: type[Any]) -> Iterator[str]:
    """`name: meaning` of every field; a field that overrides a default inherits its meaning."""
    meanings: dict[str, str] = {}
    for kind in reversed(config.__mro__[:-1]):
        meanings |= attribute_docstrings(kind)

    for field in fields(config):
        yield f"{field.name}: {meanings.get(field.name, '')}".rstrip(": ")


@cache
def attribute_docstrings(kind: type[Any]) -> dict[str, str]:
    """The string below each field in the source; empty where the source is not available."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}

    if not isinstance(tree, ast.ClassDef):
        return {}

    docstrings: dict[str, str] = {}
    for field, expression in pairwise(tree.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if not isinstance(expression, ast.Expr) or not isinstance(expression.value, ast.Constant):
            continue
        if isinstance(expression.value.value, str):
            docstrings[field.target.id] = inspect.cleandoc(expression.value.value)

    return docstrings


def indented(text: str) -> str:
    """A field and its meaning in lines of 80 columns, as in a Google-style docstring.

    A line begins with a letter: tyro reads any other beginning as a new paragraph.
    """
    lines = [" " * 4]
    for chunk in re.split(r"\s+(?=[A-Za-z])", " ".join(text.split())):
        if len(lines[-1]) + len(chunk) >= 80:
            lines.append(" " * 8)

        if not lines[-1].isspace():
            lines[-1] += " "

        lines[-1] += chunk

    return "\n".join(lines)
