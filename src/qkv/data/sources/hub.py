"""Hugging Face datasets by name, hf:name[:config][:split], through the package `datasets`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from qkv.data.sources.formats import (
    Choose,
    Row,
    columns_of,
    first_line,
    inside,
    outer_columns,
)
from qkv.imports import require

SPLITS = ("train", "validation", "valid", "dev", "test")


class HubDataset:
    """A dataset of the Hugging Face hub, downloaded once and cached by `datasets`."""

    def __init__(self, item: str) -> None:
        self.name = item
        name, config, split = parts(item)
        library = require("datasets", item)
        try:
            self.data: Any = library.load_dataset(name, config, split=split)
        except Exception as error:  # of many kinds: no network, no such name, no such split
            raise OSError(
                f"{item}: cannot be loaded from the Hugging Face hub ({first_line(error)})"
            ) from error

    def at(self, number: int) -> str:
        """A row of the dataset, for errors."""
        return f"{self.name}, row {number}"

    def rows(self, choose: Choose) -> Iterator[Row]:
        """The rows with the values of the chosen columns."""
        names = list(self.data.column_names)
        columns = columns_of(choose(names, self.name), names, self.name)
        outer = outer_columns(columns, names)
        number = 0

        for batch in self.data.select_columns(outer).iter(batch_size=256):
            for values in zip(*(batch[name] for name in outer), strict=True):
                number += 1
                record = dict(zip(outer, values, strict=True))
                yield number, [inside(record, column, self.at(number)) for column in columns]

    def fingerprint(self) -> str:
        return str(self.data._fingerprint)


def parts(item: str) -> tuple[str, str | None, str]:
    """The name, the configuration and the split of a dataset."""
    name, *rest = re.split(r":(?![^\[]*\])", item.removeprefix("hf:"))  # a split may be train[:10%]
    if not name or len(rest) > 2:
        raise ValueError(
            f"{item}: expected hf:name, hf:name:split, hf:name:config or hf:name:config:split"
        )
    if not rest:
        return name, None, "train"
    if len(rest) == 2:
        return name, rest[0] or None, rest[1] or "train"
    if rest[0].partition("[")[0] in SPLITS:
        return name, None, rest[0]

    return name, rest[0], "train"
