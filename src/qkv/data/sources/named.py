"""Data from a function instead of files: registered as `name:split`, or named as `file.py:name`.

`qkv train --data turkish:train` reads the pairs that the grammar of `turkish` makes, and
`QKV_PLUGINS=mine.py qkv train --data mine.py:texts` the strings that a function `texts()` of one's
own yields. A file that is not listed there is never run, since a run's folder or a task's file,
which may be somebody else's, can name data, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from qkv.data.embedded import everyday_english, python_library, synthetic, turkish
from qkv.data.embedded.grammar_labels import LABELLED
from qkv.data.embedded.turkish_long import long_pairs
from qkv.data.embedded.word_pairs import READERS, WORD_SPLITS
from qkv.data.embedded.word_senses import labelled_senses, labelled_words
from qkv.data.sources.source_parts import Item, Items, Part
from qkv.plugins import is_plugin, load_allowed

Content = Literal["texts", "pairs", "labelled rows"]
VALUES = {"texts": 1, "pairs": 2, "labelled rows": 2}
"""Strings that an item consists of."""
Read = TypeVar("Read", bound=Callable[[Any], Iterable[Any]])


class NamedSource(NamedTuple):
    """A function that yields the texts, the pairs or the labelled texts of a split."""

    content: Content
    splits: tuple[str, ...]
    read: Callable[[Any], Iterable[Any]]


SPLITS: tuple[str, ...] = get_args(turkish.Split)
"""The splits of most embedded data: train, valid and test."""
NAMED_SOURCES = {
    "python": NamedSource("texts", get_args(python_library.Split), python_library.texts),
    "turkish": NamedSource("pairs", SPLITS, turkish.pairs),
    "english": NamedSource("texts", ("train", "valid"), everyday_english.english_texts),
    "turkish-long": NamedSource("pairs", SPLITS, long_pairs),
    "copy": NamedSource("pairs", SPLITS, synthetic.copy_pairs),
    "reverse": NamedSource("pairs", SPLITS, synthetic.reverse_pairs),
    "lookups": NamedSource("pairs", SPLITS, synthetic.lookups_pairs),
    "back": NamedSource("texts", SPLITS, synthetic.back_texts),
    "random": NamedSource("texts", SPLITS, synthetic.random_texts),
    **{name: NamedSource("pairs", WORD_SPLITS, read) for name, read in READERS.items()},
    **{name: NamedSource("labelled rows", SPLITS, read) for name, read in LABELLED.items()},
    "labels-run": NamedSource("labelled rows", ("train", "valid"), labelled_words),
    "labels-senses": NamedSource("labelled rows", ("train", "valid"), labelled_senses),
    "masked-clues": NamedSource("pairs", ("test",), everyday_english.clue_pairs),
}
"""A file of such a name is written ./python."""


def register_source(
    name: str, content: Content, splits: Sequence[str] = ("train", "valid")
) -> Callable[[Read], Read]:
    """Decorate a function so that its items are data by name: `--data name:split`.

    Args:
        name: The name before the colon.
        content: "texts", if the function yields strings; "pairs", if it yields tuples of a text and
            its translation; "labelled rows", if it yields tuples of a text and its class.
        splits: The names after the colon. The first is the default; `valid` is used for validation
            if only the name is given to train on.

    Returns:
        The decorator. The function is called with a split, always yields the same items for it, and
        stays as it is.

    Raises:
        ValueError: If the name is taken, contains a colon, or there is no split.

    Example:
        >>> from qkv.data import open_texts, register_source
        >>> @register_source("counting", "texts", splits=["train"])
        ... def counting(split):
        ...     yield "one two three"
        >>> [part.text for part in open_texts(["counting:train"])]
        ['one two three']
    """
    if name in NAMED_SOURCES or ":" in name or not splits:
        raise ValueError(f"name: expected a new name without a colon, and splits, not {name!r}")

    def register(read: Read) -> Read:
        NAMED_SOURCES[name] = NamedSource(content, tuple(splits), read)
        return read

    return register


def is_named(item: str) -> bool:
    """True for registered data, with or without a split, and for a function, file.py:name."""
    return is_plugin(item) or item.partition(":")[0] in NAMED_SOURCES


def named_part(item: str, what: str, items: Items[Item]) -> Part[Item]:
    """A split of registered data, or the data of a function; `what` is the content needed."""
    title, values = plugin_values(item) if is_plugin(item) else split_values(item, what)

    def read() -> Iterator[Item]:
        for value in values():
            row = [value] if isinstance(value, str) else list(value)
            if len(row) != VALUES.get(what):
                raise ValueError(f"{title}: expected {what}, not {value!r:.60}")

            yield from items(row, title)

    return Part(title, read, lambda: {title: digest(read())}, "there are no items")


def plugin_values(item: str) -> tuple[str, Callable[[], Iterable[Any]]]:
    """The name of a function's data, and the function, if the user has allowed its file to run."""
    return item, load_allowed(item, "data")


def split_values(item: str, what: str) -> tuple[str, Callable[[], Iterable[Any]]]:
    """The name of a split of registered data, and a function that reads it."""
    name, _, split = item.partition(":")
    content, splits, read = NAMED_SOURCES[name]
    if content != what:
        raise ValueError(
            f"{item}: {name} holds {content}, not {what}; a file of this name is ./{name}"
        )

    split = split or splits[0]
    if split not in splits:
        known = ", ".join(f"{name}:{split}" for split in splits)
        raise ValueError(f"{item}: expected one of {known}")

    return f"{name}:{split}", partial(read, split)


def digest(items: Iterable[Any]) -> str:
    """The SHA-256 of items as JSON."""
    checksum = hashlib.sha256()
    for item in items:
        checksum.update(json.dumps(item).encode())

    return checksum.hexdigest()
