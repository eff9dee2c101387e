"""How flag values are parsed where tyro's messages show its internals: numbers, optional values."""

from __future__ import annotations

from dataclasses import asdict, fields
from types import NoneType
from typing import Any, get_args

from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

from qkv.command_line.usage_errors import not_among
from qkv.nn.config import is_union
from qkv.nn.stack_config import RotaryScaling

NUMBERS: dict[type, str] = {int: "a whole number", float: "a number"}


def flag_types() -> ConstructorRegistry:
    """The rules of this module, for tyro."""
    registry = ConstructorRegistry()
    for rule in (number, optional, rotary_scaling):
        registry.primitive_rule(rule)

    return registry


def number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """An int or a float, with our own error message."""
    kind = info.type
    if kind not in NUMBERS:
        return None

    def read(values: list[str]) -> Any:
        try:
            return kind(values[0])
        except ValueError:
            raise ValueError(f"expected {NUMBERS[kind]}, not {values[0]!r}") from None

    def is_instance(value: Any) -> Any:
        if kind is float and type(value) is int:
            return "~"  # tyro's mark for a value that fits loosely

        return type(value) is kind

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=read,
        is_instance=is_instance,
        str_from_instance=lambda value: [str(value)],
    )


def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`X | None` reads and shows X; typing None resets a flag of a resumed run."""
    inner = optional_member(info)
    if inner is None:
        return None

    def read(values: list[str]) -> Any:
        if values == ["None"]:
            return None
        if isinstance(inner.nargs, int) and len(values) != inner.nargs:
            raise ValueError(f"expected {inner.nargs} values, not {len(values)}")
        if inner.choices is not None and values[0] not in inner.choices:
            raise ValueError(not_among(values[0], inner.choices))

        return inner.instance_from_str(values)

    def show(value: Any) -> list[str]:
        if value is None:
            return ["None"]

        return inner.str_from_instance(value)

    return PrimitiveConstructorSpec(
        nargs=nargs_with_none(inner.nargs),
        metavar=inner.metavar,
        instance_from_str=read,
        is_instance=lambda value: value is None or inner.is_instance(value),
        str_from_instance=show,
    )


def optional_member(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """How X is parsed, if the type is `X | None` with one X."""
    if not is_union(info.type):
        return None

    members = set(get_args(info.type))
    if NoneType not in members or len(members) != 2:
        return None

    (member,) = members - {NoneType}
    inner = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(member, info.markers))
    if isinstance(inner, UnsupportedTypeAnnotationError):
        return None

    return inner


def nargs_with_none(count: Any) -> Any:
    """The numbers of values that a flag takes when a single None is possible, too."""
    if count in (1, "*"):
        return count
    if isinstance(count, int):
        return (1, count)

    return (1, *count)


def rotary_scaling(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """One flag for a config of four numbers: 32, or factor=32,original_context=8192."""
    if info.type is not RotaryScaling:
        return None

    kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(RotaryScaling)}

    def read(values: list[str]) -> RotaryScaling:
        numbers: dict[str, Any] = {}
        for part in values[0].split(","):
            name, equals, value = part.partition("=")
            if not equals:
                name = "factor"
                value = part

            if name not in kinds:
                raise ValueError(not_among(name, list(kinds)))

            try:
                numbers[name] = kinds[name](value)
            except ValueError:
                expected = NUMBERS[kinds[name]]
                raise ValueError(f"expected {expected} for {name}, not {value!r}") from None

        return RotaryScaling(**numbers)

    def show(value: RotaryScaling) -> list[str]:
        return [",".join(f"{name}={number}" for name, number in asdict(value).items())]

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="FACTOR",
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, RotaryScaling),
        str_from_instance=show,
    )
