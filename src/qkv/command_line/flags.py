"""The flags of a command, read from the signature of its function or the fields of its dataclass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import tyro

from qkv.nn.config import is_union
from qkv.nn.stack_config import RotaryScaling

Kind = Literal["switch", "choice", "file", "number", "text"]


class Flag(NamedTuple):
    field: str
    """As the code and the errors call it: top_k."""
    names: tuple[str, ...]
    """As a person types it: --top-k; none of an argument that has no flag."""
    kind: Kind
    """What its values are."""
    choices: tuple[str, ...] = ()
    several: bool = False
    """Whether one flag takes several values."""


def flags_of(target: Callable[..., Any]) -> Iterator[Flag]:
    """Every flag and argument; those of nested dataclasses have no prefix."""
    for field, hint in get_type_hints(target, include_extras=True).items():
        kind, extras = (
            (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())
        )
        if field == "return":
            continue

        if is_dataclass(kind) and kind is not RotaryScaling:
            yield from flags_of(kind)  # type: ignore[arg-type]
        else:
            yield flag_of(field, kind, extras)


def flag_of(field: str, kind: Any, extras: tuple[Any, ...]) -> Flag:
    if is_union(kind):
        kind, optional = next(each for each in get_args(kind) if each is not NoneType), True
    else:
        optional = False

    several = get_origin(kind) is tuple
    kind = get_args(kind)[0] if several else kind

    own = next(
        (each.name for each in extras if getattr(each, "name", None)), field.replace("_", "-")
    )
    aliases = [alias for each in extras for alias in getattr(each, "aliases", None) or ()]
    if kind is bool and not optional:
        return Flag(field, (*aliases, f"--{own}", f"--no-{own}"), "switch")

    names = () if tyro.conf.Positional in extras else (*aliases, f"--{own}")
    if kind is bool or get_origin(kind) is Literal:
        return Flag(
            field, names, "choice", ("True", "False") if kind is bool else get_args(kind), several
        )

    kinds: dict[Any, Kind] = {Path: "file", int: "number", float: "number", RotaryScaling: "number"}

    return Flag(field, names, kinds.get(kind, "text"), several=several)
