"""Configs are frozen dataclasses; a wrong value is refused at once, by the name of its field."""

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
    """Every field holds a value of its declared type; a whole number is 0 or more."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        kinds = get_args(hints[field.name]) if is_union(hints[field.name]) else (hints[field.name],)
        if not any(fits(value, kind) for kind in kinds):
            raise ValueError(
                f"{field.name}: expected {' or '.join(map(describe, kinds))}, not {value!r}"
            )


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
        return isinstance(value, tuple) and all(fits(each, get_args(kind)[0]) for each in value)
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
    }

    return {**names, NoneType: "nothing"}.get(kind, str(kind))


Class = TypeVar("Class", bound=type[Any])


def documented(config: Class) -> Class:
    """Append the fields and their attribute docstrings to a config's own docstring, so that help()
    lists them.
    """
    config.__doc__ = FieldDocumentation(config)  # type: ignore[assignment]
    return config


class FieldDocumentation:
    """A class docstring that is put together when it is first read: parsing the source takes
    milliseconds.
    """

    def __init__(self, config: type[Any]) -> None:
        text = inspect.cleandoc(config.__doc__ or "")
        self.summary = (
            "" if text.startswith(f"{config.__name__}(") else text
        )  # dataclass's own: the signature
        self.text: str | None = None

    def __get__(self, instance: Any, config: type[Any]) -> str:
        if self.text is None:
            self.text = "\n".join(
                [self.summary, "", "Attributes:", *map(indented, described(config))]
            ).lstrip()

        return self.text


def described(config: type[Any]) -> Iterator[str]:
    """`name: meaning` of every field; one that only changes an inherited default has the inherited
    meaning.
    """
    texts: dict[str, str] = {}
    for kind in reversed(config.__mro__[:-1]):
        texts |= attribute_docstrings(kind)

    for each in fields(config):
        yield f"{each.name}: {texts.get(each.name, '')}".rstrip(": ")


@cache
def attribute_docstrings(kind: type[Any]) -> dict[str, str]:
    """The string below each field, as written in the source; none where the source is not there."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}

    body = tree.body if isinstance(tree, ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def indented(text: str) -> str:
    """A field and its meaning in lines of 80 columns, as in a docstring of Google's style.

    A line begins with a letter: tyro reads any other beginning as a paragraph of its own.
    """
    lines = [" " * 4]
    for words in re.split(r"\s+(?=[A-Za-z])", " ".join(text.split())):
        if len(lines[-1]) + len(words) >= 80:
            lines.append(" " * 8)

        lines[-1] += words if lines[-1].isspace() else f" {words}"

    return "\n".join(lines)
