"""How the values of flags are read, where tyro's own way shows its inside: numbers, what may be
left out, scaling.
"""

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
    registry = ConstructorRegistry()
    for rule in (number, optional, rotary_scaling):
        registry.primitive_rule(rule)

    return registry


def number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """An int or a float, refused in words."""
    kind = info.type
    if kind not in NUMBERS:
        return None

    def read(words: list[str]) -> Any:
        try:
            return kind(words[0])
        except ValueError:
            raise ValueError(f"expected {NUMBERS[kind]}, not {words[0]!r}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=read,
        is_instance=lambda value: (
            type(value) is kind or ("~" if kind is float and type(value) is int else False)
        ),
        str_from_instance=lambda value: [str(value)],
    )


def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`X | None` reads and shows X; None can be typed, to undo what a resumed run was begun with."""
    members = (
        [each for each in get_args(info.type) if each is not NoneType]
        if is_union(info.type)
        else []
    )
    if len(members) != 1 or NoneType not in get_args(info.type):
        return None

    inner = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(members[0], info.markers))
    if isinstance(inner, UnsupportedTypeAnnotationError):
        return None

    def read(words: list[str]) -> Any:
        if words == ["None"]:
            return None
        if isinstance(inner.nargs, int) and len(words) != inner.nargs:
            raise ValueError(f"expected {inner.nargs} values, not {len(words)}")
        if inner.choices is not None and words[0] not in inner.choices:
            raise ValueError(not_among(words[0], inner.choices))

        return inner.instance_from_str(words)

    count = inner.nargs

    return PrimitiveConstructorSpec(
        nargs=count if count in (1, "*") else (1, count) if isinstance(count, int) else (1, *count),
        metavar=inner.metavar,
        instance_from_str=read,
        is_instance=lambda value: value is None or inner.is_instance(value),
        str_from_instance=lambda value: (
            ["None"] if value is None else inner.str_from_instance(value)
        ),
    )


def rotary_scaling(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """One flag for a config of four numbers: 32, or factor=32,original_context=8192."""
    if info.type is not RotaryScaling:
        return None

    kinds: dict[str, Any] = {each.name: type(each.default) for each in fields(RotaryScaling)}

    def read(words: list[str]) -> RotaryScaling:
        values: dict[str, Any] = {}
        for part in words[0].split(","):
            name, equals, value = part.partition("=")
            name, value = (name, value) if equals else ("factor", name)
            if name not in kinds:
                raise ValueError(not_among(name, list(kinds)))

            try:
                values[name] = kinds[name](value)
            except ValueError:
                raise ValueError(
                    f"expected {NUMBERS[kinds[name]]} for {name}, not {value!r}"
                ) from None

        return RotaryScaling(**values)

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="FACTOR",
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, RotaryScaling),
        str_from_instance=lambda value: [
            ",".join(f"{name}={each}" for name, each in asdict(value).items())
        ],
    )
