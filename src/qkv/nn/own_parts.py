"""Parts of one's own in a model: attention, feed-forward and positions from outside the package.

A config names a part: a name under which a class was registered, or "file.py:Class". A file is run
only if the user asked for it: by a flag such as --attention, or by listing it in QKV_PLUGINS, which
a model that was saved with the part needs when it is loaded again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from qkv.plugins import SPEC, listed_files, load_object, require_listed

FIELDS = ("attention", "feed_forward", "position_encoding")
PARTS: dict[str, dict[str, type[nn.Module]]] = {field: {} for field in FIELDS}
"""Registered classes by the field of the config and their name there."""
allowed: set[Path] = set()
"""Files that a flag has named."""


def register_part(field: str, name: str, part: type[nn.Module]) -> None:
    """Let configs name a class of one's own.

    Args:
        field: `attention` for a subclass of `MultiHeadAttention`, `feed_forward` for a module that
            is built as `FeedForward` is, `position_encoding` for a subclass of `PositionEncoding`.
        name: What the config calls it.
        part: The class.

    Raises:
        ValueError: If there is no such field.

    Example:
        >>> from qkv.nn import FeedForward, StackConfig, register_part
        >>> class Wide(FeedForward):
        ...     "A feed-forward layer of one's own."
        >>> register_part("feed_forward", "wide", Wide)
        >>> StackConfig(feed_forward="wide").feed_forward
        'wide'
    """
    if field not in PARTS:
        raise ValueError(f"field: expected one of {', '.join(PARTS)}, not {field!r}")

    PARTS[field][name] = part


def allow_file(field: str, spec: str) -> str:
    """Run the file of "file.py:Class", and return the same with the file's absolute path."""
    load_object(spec, field)
    path, _, name = spec.rpartition(":")
    file = Path(path).expanduser().resolve()
    allowed.add(file)

    return f"{file}:{name}"


def part_of(field: str, name: str | None, default: type[nn.Module]) -> Any:
    """The class that a config names for a field, or the default; raises if it is another kind."""
    if name is None:
        return default

    part = PARTS[field].get(name)
    if part is None:
        part = load_allowed(field, name)

    if not (isinstance(part, type) and issubclass(part, default)):
        given = getattr(part, "__name__", repr(part))
        raise ValueError(f"{field}: expected a subclass of qkv.nn.{default.__name__}, not {given}")

    return part


def load_allowed(field: str, spec: str) -> Any:
    """The object of "file.py:Class", if the user has allowed the file."""
    match = SPEC.fullmatch(spec)
    if match is None:
        known = ", ".join(PARTS.get(field, ())) or "none is registered"
        raise ValueError(f"{field}: expected file.py:Class or a registered name ({known})")

    file = Path(match["file"]).expanduser().resolve()
    moved = [other for other in listed_files() if other.name == file.name and not file.is_file()]
    if moved:
        return load_object(f"{moved[0]}:{match['name']}", field)
    if file not in allowed:
        require_listed(spec, field)

    return load_object(spec, field)
