"""The flags of a command, from the signature of its function or the fields of its dataclass."""

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
KINDS: dict[Any, Kind] = {Path: "file", int: "number", float: "number", RotaryScaling: "number"}


class Flag(NamedTuple):
    """One flag or positional argument of a command."""

    field: str
    """The name in code and errors: top_k."""
    names: tuple[str, ...]
    """The names on the command line: --top-k; none for a positional argument."""
    kind: Kind
    """What its values are."""
    choices: tuple[str, ...] = ()
    several: bool = False
    """Whether one flag takes several values."""


def flags_of(target: Callable[..., Any]) -> Iterator[Flag]:
    """Every flag and argument of a function or dataclass; nested dataclasses add no prefix."""
    for field, hint in get_type_hints(target, include_extras=True).items():
        kind = hint
        extras: tuple[Any, ...] = ()
        if get_origin(hint) is Annotated:
            kind = hint.__origin__
            extras = hint.__metadata__

        if field == "return" or tyro.conf.Suppress in extras:
            continue

        if is_dataclass(kind) and kind is not RotaryScaling:
            yield from flags_of(kind)  # type: ignore[arg-type]
        else:
            yield flag_of(field, kind, extras)


def flag_of(field: str, kind: Any, extras: tuple[Any, ...]) -> Flag:
    """The flag of one parameter with this type and these annotations."""
    optional = is_union(kind)
    if optional:
        kind = next(member for member in get_args(kind) if member is not NoneType)

    several = get_origin(kind) is tuple
    if several:
        kind = get_args(kind)[0]

    name, aliases = typed_names(field, extras)
    if kind is bool and not optional:
        return Flag(field, (*aliases, f"--{name}", f"--no-{name}"), "switch")

    names: tuple[str, ...] = (*aliases, f"--{name}")
    if tyro.conf.Positional in extras:
        names = ()

    if kind is bool:
        return Flag(field, names, "choice", ("True", "False"), several)
    if get_origin(kind) is Literal:
        return Flag(field, names, "choice", get_args(kind), several)

    return Flag(field, names, KINDS.get(kind, "text"), several=several)


def typed_names(field: str, extras: tuple[Any, ...]) -> tuple[str, list[str]]:
    """The name without its dashes, which tyro.conf.arg may replace, and the aliases."""
    name = field.replace("_", "-")
    aliases: list[str] = []

    for extra in reversed(extras):
        name = getattr(extra, "name", None) or name
        aliases = [*(getattr(extra, "aliases", None) or ()), *aliases]

    return name, aliases
