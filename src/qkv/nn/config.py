"""Configs are frozen dataclasses; a wrong value is refused at once, by the name of its field."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_fields(config: Any) -> None:
    """Every field holds a value of its declared type; a whole number is 0 or more."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        kinds = get_args(hints[field.name]) if is_union(hints[field.name]) else (hints[field.name],)
        if not any(fits(value, kind) for kind in kinds):
            raise ValueError(f"{field.name}: expected {' or '.join(map(describe, kinds))}, not {value!r}")


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
            raise ValueError(f"{name}: expected a probability from 0 to below 1, not {getattr(config, name)!r}")


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
    names = {int: "a whole number of 0 or more", float: "a number", bool: "true or false", str: "a text"}
    return {**names, NoneType: "nothing"}.get(kind, str(kind))
