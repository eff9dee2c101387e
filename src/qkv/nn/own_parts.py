"""Parts of one's own in a model: attention, feed-forward and positions from outside the package.

A config names a part: a name under which a class was registered, or "file.py:Class". A file is run
only if the user asked for it: by a flag such as --attention, or by listing it in QKV_PLUGINS, which
a model that was saved with the part needs when it is loaded again.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from qkv.plugins import is_plugin, load_allowed

FIELDS = ("attention", "feed_forward", "position_encoding")
PARTS: dict[str, dict[str, type[nn.Module]]] = {field: {} for field in FIELDS}
"""Registered classes by the field of the config and their name there."""


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


def part_of(field: str, name: str | None, default: type[nn.Module]) -> Any:
    """The class that a config names for a field, or the default; raises if it is another kind."""
    if name is None:
        return default

    part: Any = PARTS[field].get(name)
    if part is None:
        if not is_plugin(name):
            known = ", ".join(PARTS[field]) or "none is registered"
            raise ValueError(f"{field}: expected file.py:Class or a registered name ({known})")

        part = load_allowed(name, field)

    if not (isinstance(part, type) and issubclass(part, default)):
        given = getattr(part, "__name__", repr(part))
        raise ValueError(f"{field}: expected a subclass of qkv.nn.{default.__name__}, not {given}")

    return part
