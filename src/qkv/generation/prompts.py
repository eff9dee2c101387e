"""What people give as a prompt: one sequence of token ids or several, as lists, tensors or arrays,
or texts.

One sequence is a list of ids, a one-dimensional tensor or, where a tokenizer is there, a string.
Several are a list of these or a two-dimensional tensor. Functions that return one result for each
sequence return it alone for one sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AnySet
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

Arrays = (
    Int[Tensor, "T"] | Int[Tensor, "B T"] | Integer[np.ndarray, "T"] | Integer[np.ndarray, "B T"]
)
Prompts = Sequence[int] | Sequence[Sequence[int]] | Sequence[Tensor] | Arrays
TextPrompts = str | Prompts | Sequence[str | Sequence[int]]


class TokenRows(NamedTuple):
    rows: list[list[int]]
    single: bool
    """One sequence was given, not a list of sequences."""


class TextRows(NamedTuple):
    rows: list[str | list[int]]
    single: bool


def token_rows(
    given: object, vocabulary: int, name: str = "prompts", padding_mask: Tensor | None = None
) -> TokenRows:
    """Sequences of token ids, each of one id or more, and all of them below the vocabulary's size.
    Those where `padding_mask` is False are padding, and left out."""
    found, single = text_rows(given, name)
    rows: list[list[int]] = []

    for row in found:
        if isinstance(row, str):
            raise TypeError(
                f"{name}: expected token ids, not text; encode it with tokenizer.encode(text), or use "
                "complete(model, tokenizer, text), which takes text"
            )

        rows.append(row)

    if padding_mask is not None:
        rows = without_padding(
            rows, padding_mask.unsqueeze(0) if single and padding_mask.dim() == 1 else padding_mask
        )

    check_rows(rows, vocabulary, name)

    return TokenRows(rows, single)


def without_padding(rows: list[list[int]], padding_mask: Tensor) -> list[list[int]]:
    if tuple(padding_mask.shape) != (len(rows), len(rows[0]) if rows else 0):
        raise ValueError(
            f"padding_mask: expected the source's shape, not {tuple(padding_mask.shape)}"
        )

    return [
        [id for id, kept in zip(*both, strict=True) if kept]
        for both in zip(rows, padding_mask.tolist(), strict=True)
    ]


def text_rows(given: object, name: str = "prompts") -> TextRows:
    """The same, of texts and token ids; the ids are not looked at yet."""
    if isinstance(given, str):
        return TextRows([given], True)

    if isinstance(given, Tensor | np.ndarray):
        if given.ndim not in (1, 2):
            raise ValueError(
                f"{name}: expected token ids of shape (T,) or (B, T), not {tuple(given.shape)}"
            )

        numbers = integers(given, name)
        return TextRows([numbers], True) if given.ndim == 1 else TextRows(numbers, False)

    items = listed(given, name)
    if not items:
        raise ValueError(f"{name}: expected one or more, not an empty list")
    if all(map(is_id, items)):
        return TextRows([[int(item) for item in items]], True)

    return TextRows(
        [item if isinstance(item, str) else row_of(item, name) for item in items], False
    )


def row_of(given: object, name: str) -> list[int]:
    """One sequence of token ids."""
    if isinstance(given, Tensor | np.ndarray):
        if given.ndim != 1:
            raise ValueError(
                f"{name}: expected one-dimensional rows, not one of shape {tuple(given.shape)}"
            )

        return integers(given, name)

    if is_id(given):
        raise TypeError(f"{name}: expected token ids, or lists of them, not both in one list")

    items = listed(given, name)

    for item in items:
        if not is_id(item):
            raise TypeError(f"{name}: expected token ids (whole numbers) in each row, not {item!r}")

    return [int(item) for item in items]


def listed(given: object, name: str) -> list[Any]:
    unordered = isinstance(given, Mapping | AnySet | bytes | bytearray)
    if unordered or not isinstance(given, Iterable):
        raise TypeError(
            f"{name}: expected a list of token ids or several such lists, not {given!r:.80}"
        )

    return list(given)


def is_id(item: object) -> bool:
    if isinstance(item, Tensor):
        return item.ndim == 0 and whole(item)

    return isinstance(item, Integral) and not isinstance(item, bool)


def integers(given: Tensor | np.ndarray, name: str) -> list[Any]:
    if not whole(given):
        raise TypeError(f"{name}: expected token ids of an integer dtype, not {given.dtype}")

    return given.tolist()


def whole(given: Tensor | np.ndarray) -> bool:
    if isinstance(given, np.ndarray):
        return np.issubdtype(given.dtype, np.integer)

    return not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)


def check_rows(rows: Sequence[Sequence[int]], vocabulary: int, name: str) -> None:
    """On the host, and before anything is read: a GPU that finds a wrong id is of no more use to
    the program.
    """
    if any(not row for row in rows):
        raise ValueError(
            f"{name}: expected one id or more in each row; a start or end id can begin a text"
        )

    for row in rows:
        if min(row) < 0 or max(row) >= vocabulary:
            wrong = min(row) if min(row) < 0 else max(row)
            raise ValueError(f"{name}: expected ids from 0 to {vocabulary - 1}, found {wrong}")


def check_whole(name: str, number: object, what: str = "a whole number") -> None:
    if not is_id(number):
        raise TypeError(f"{name}: expected {what}, not {number!r}")


def check_text(text: object, name: str = "text") -> None:
    """One string, and not several."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: expected one string, not {text!r:.80}")


def texts_of(given: object, name: str = "texts") -> tuple[list[str], bool]:
    """Texts, and whether one string was given."""
    if isinstance(given, str):
        return [given], True
    if isinstance(given, Mapping | AnySet | bytes | Tensor | np.ndarray) or not isinstance(
        given, Iterable
    ):
        raise TypeError(f"{name}: expected a string or a list of strings, not {given!r:.80}")

    texts = list(given)

    for number, text in enumerate(texts):
        check_text(text, f"{name}: number {number}")

    return texts, False
